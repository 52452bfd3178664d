"""Limits: how many jobs of each queue, type and key may run or start, and the forms that change them."""

from __future__ import annotations

from typing import Any

from oxcart.http.audit import note
from oxcart.http.service import Service
from oxcart.http.times import parse_go_ms
from oxcart.http.web.actions import Fields, action
from oxcart.http.web.dashboard import View, each, page
from oxcart.http.web.pulse import Track
from oxcart.model.errors import ValidationError
from oxcart.queue import Queue

#: Queues that the page lists.
MOST = 200
#: What a limit of a part of a queue applies to, and the words of the form.
PARTS = {
    "type": "a job type",
    "key": "each limit key",
    "groups": "each group",
    "group": "one group",
}


class LimitsPage(View):
    """Limits."""

    title = "Limits"
    template = "limits.html"
    parts = ("limits",)
    every = 10.0
    nav = "limits"

    def read_address(self) -> None:
        """Reads the queue, and what the form begins with."""
        self._chosen = {name: self.query.get(name, "") for name in ("queue", "of", "name")}
        if self._chosen["queue"]:
            self.service.queue(self._chosen["queue"])

    async def load(self) -> dict[str, Any]:
        """Reads the limits of a queue, or of all queues that have some."""
        chosen = self._chosen["queue"]
        tracks = await self.tracks()
        queues = self.service.chosen([chosen] if chosen else None)
        able = [queue for queue in queues if queue.capabilities.can("queue_limits")]
        found = await each(able, lambda queue: _read(queue, tracks[queue.name]))
        rows = [row for row in found if chosen or row["is_limited"]]
        everywhere = self.service.queues.items()
        return {
            "rows": rows[:MOST],
            "left_out": max(0, len(rows) - MOST),
            "unlimited": [queue.name for queue in queues if queue not in able],
            "names": [name for name, queue in everywhere if queue.capabilities.can("queue_limits")],
            "of": PARTS,
            "chosen": self._chosen,
            "queue": chosen,
        }


async def _read(queue: Queue, track: Track) -> dict[str, Any]:
    of = queue.limits
    types, key = await of.type_limits(), await of.key_limit()
    group = await queue.groups.settings() if queue.capabilities.can("groups") else None
    group = group if group and (group.concurrent or group.per_minute) else None
    row = {
        "queue": queue.name,
        "concurrency": await of.concurrency(),
        "rate": await of.rate(),
        "blocked": await of.wait_ms(),
        "types": [(kind, limit, await of.type_usage(kind)) for kind, limit in types.items()],
        "key": key,
        "key_usage": await of.key_usage() if key is not None else None,
        "group": group,
        "grouped": track.sample.grouped,
        "running": track.count("active"),
    }
    row["is_limited"] = any(row[name] for name in ("concurrency", "rate", "blocked", "types", "key", "group"))
    return row


async def _set(service: Service, fields: Fields) -> tuple[str, int]:
    limits = service.queue(fields.get("queue", "")).limits
    concurrency, most, per = (fields.get(name, "").strip() for name in ("concurrency", "most", "per"))
    at_once = _number(concurrency, "concurrency") if concurrency else None
    starts = (_number(most, "most"), parse_go_ms(per or "1s", "per", minimum=1)) if most else None
    if at_once is None:
        await limits.remove_concurrency()
    else:
        await limits.set_concurrency(at_once)
    if starts is None:
        await limits.remove_rate()
    else:
        await limits.set_rate(starts[0], per=starts[1] / 1000)
    return "limited", 1


async def _set_part(service: Service, fields: Fields) -> tuple[str, int]:
    queue, of, name = (fields.get(field, "") for field in ("queue", "of", "name"))
    found = service.queue(queue)
    if of not in PARTS:
        raise ValidationError("of", f"one of {', '.join(PARTS)}", of)
    if of == "type" and not name:
        raise ValidationError("name", "the name of a job type", name)
    note(of=of, name=name)
    given = {field: fields.get(field, "").strip() for field in ("concurrent", "per_minute", "weight")}
    if given["weight"] and of != "group":
        raise ValidationError("weight", "left out: only one group has a weight", given["weight"])
    # Groups know 0 as "unlimited, whatever the limit of all groups is".
    least = 0 if of == "group" else 1
    concurrent, per_minute = (
        _number(given[field], field, least) if given[field] else None
        for field in ("concurrent", "per_minute")
    )
    if of == "group":
        weight = _weight(given["weight"]) if given["weight"] else None
        await found.groups.set(name, concurrent=concurrent, per_minute=per_minute, weight=weight)
    elif of == "groups":
        await found.groups.set_all(concurrent=concurrent, per_minute=per_minute)
    elif of == "type" and concurrent is None and per_minute is None:
        await found.limits.remove_type_limit(name)
    elif of == "type":
        await found.limits.set_type_limit(name, concurrent=concurrent, per_minute=per_minute)
    elif concurrent is None and per_minute is None:
        await found.limits.remove_key_limit()
    else:
        await found.limits.set_key_limit(concurrent=concurrent, per_minute=per_minute)
    return "limited", 1


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValidationError("weight", "a number from 0.001 to 1000", text) from None


def _number(text: str, field: str, least: int = 1) -> int:
    if not (text.isascii() and text.isdigit() and least <= int(text) <= 1_000_000_000):
        raise ValidationError(field, f"an integer from {least} to 1000000000", text)
    return int(text)


ROUTES = [*page("/limits", LimitsPage), action("/limits/set", _set), action("/limits/set-part", _set_part)]
