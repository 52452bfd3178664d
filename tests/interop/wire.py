"""The visible form of a queue on the server: types of keys, fields of hashes and events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import redis

#: The type of every key that a queue may have; ``*`` is a job's id.
KEY_TYPES = {
    "active": "list",
    "completed": "zset",
    "delayed": "zset",
    "events": "stream",
    "failed": "zset",
    "id": "string",
    "limiter": "string",
    "marker": "zset",
    "meta": "hash",
    "paused": "list",
    "pc": "string",
    "prioritized": "zset",
    "stalled": "set",
    "stalled-check": "string",
    "wait": "list",
    "waiting-children": "zset",
    "*": "hash",
    "*:lock": "string",
    "*:logs": "list",
    "*:dependencies": "set",
    "*:processed": "hash",
    "*:failed": "hash",
    "*:unsuccessful": "zset",
    "ox:call:*": "string",
    "ox:worker:*": "string",
    "ox:workers": "zset",
    "ox:alive": "string",
    "ox:away": "string",
}
_ROOMS = ("lock", "logs", "dependencies", "processed", "failed", "unsuccessful")


def place(suffix: str) -> str:
    """Returns the entry of ``KEY_TYPES`` for a key's suffix."""
    for own in ("ox:call:", "ox:worker:"):
        if suffix.startswith(own):
            return f"{own}*"
    if suffix in KEY_TYPES or suffix.startswith("ox:"):
        return suffix
    _, colon, room = suffix.rpartition(":")
    return f"*:{room}" if colon and room in _ROOMS else "*"


def key_types(client: redis.Redis, base: str) -> dict[str, set[str]]:
    """Returns the types of all keys of a queue by suffix, without keys that vanish meanwhile."""
    keys = [str(key) for key in client.scan_iter(f"{base}:*", count=1000)]
    pipe = client.pipeline(transaction=False)
    for key in keys:
        pipe.type(key)
    found: dict[str, set[str]] = defaultdict(set)
    for key, kind in zip(keys, pipe.execute(), strict=True):
        if kind != "none":
            found[place(key[len(base) + 1 :])].add(kind)
    return dict(found)


def wrong_types(client: redis.Redis, base: str) -> dict[str, set[str]]:
    """Returns the suffixes whose keys have a type that BullMQ does not use."""
    found = key_types(client, base)
    return {where: kinds for where, kinds in found.items() if kinds != {KEY_TYPES.get(where)}}


def entries(client: redis.Redis, base: str, page: int = 5000) -> Iterator[dict[str, str]]:
    """All events of a queue, oldest first."""
    start = "-"
    while True:
        found: list[tuple[str, dict[str, str]]] = client.xrange(f"{base}:events", start, "+", page)  # type: ignore[assignment]
        if not found:
            return
        yield from (fields for _, fields in found)
        start = f"({found[-1][0]}"


def event_shapes(client: redis.Redis, base: str) -> dict[str, set[tuple[str, ...]]]:
    """For each event name the lists of fields that occur, in their order, with the value of ``prev``."""
    shapes: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for fields in entries(client, base):
        shape = tuple(f"prev={value}" if name == "prev" else name for name, value in fields.items())
        shapes[fields["event"]].add(shape)
    return dict(shapes)


def job_shapes(client: redis.Redis, base: str, state: str) -> set[frozenset[str]]:
    """The sets of fields that the hashes of a state's jobs have, without those of ours."""
    ids: list[str] = client.zrange(f"{base}:{state}", 0, -1)  # type: ignore[assignment]
    pipe = client.pipeline(transaction=False)
    for job_id in ids:
        pipe.hkeys(f"{base}:{job_id}")
    return {frozenset(name for name in names if not name.startswith("ox:")) for names in pipe.execute()}
