"""Rows of tables that are sums: several rows of one key add up, and how many there are depends on spans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: The keys of such tables.
KEYS = {
    "timings": ("day", "queue", "lane", "start_ms", "start_at", "name", "version"),
    "spending": ("day", "queue", "lane", "name", "tenant", "tag", "value"),
}


def added_up(table: str, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns one row per key; rows of other tables as they are."""
    if table not in KEYS:
        return [dict(row) for row in rows]
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(row.get(name) for name in KEYS[table])
        found[key] = _sum(found[key], row, KEYS[table]) if key in found else dict(row)
    return list(found.values())


def _sum(one: Mapping[str, Any], other: Mapping[str, Any], key: tuple[str, ...]) -> dict[str, Any]:
    def together(name: str) -> Any:
        if name in key:
            return one[name]
        if name in ("last_ms", "last_at"):
            return max(one[name], other[name])
        if name in ("waits", "runs"):
            counts: dict[int, int] = {}
            for bucket in (*one[name], *other[name]):
                counts[bucket["ms"]] = counts.get(bucket["ms"], 0) + bucket["times"]
            return [{"ms": ms, "times": times} for ms, times in sorted(counts.items())]
        return one[name] + other[name]

    return {name: together(name) for name in one}
