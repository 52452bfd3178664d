"""Fair groups on the page of a queue and on that of the limits, and the actions on one group."""

from __future__ import annotations

import asyncio
from typing import Any

from oxcart.http.audit import note
from oxcart.http.service import Service
from oxcart.http.web.actions import Fields, action
from oxcart.queue import Queue

#: Groups that the page of a queue lists.
LISTED = 12


async def groups_of(queue: Queue, waiting: int) -> dict[str, Any] | None:
    """Returns the waiting groups of a queue, largest first; None without any.

    Args:
        queue: The queue.
        waiting: How many of its jobs wait for their group's turn, which a sample has counted.
    """
    if not waiting or not queue.capabilities.can("groups"):
        return None
    of = queue.groups
    summary, every = await asyncio.gather(of.summary(), of.settings())
    names = list(summary.largest)[:LISTED]
    own = await asyncio.gather(*map(of.settings, names))
    most = max(summary.largest.values(), default=1)
    return {
        "total": summary.groups,
        "waiting": summary.waiting,
        "oldest_ms": summary.oldest_ms,
        "exact": summary.exact,
        "rows": [
            {
                "name": name,
                "waiting": summary.largest[name],
                "share": round(100 * summary.largest[name] / most),
                "concurrent": every.concurrent if one.concurrent is None else one.concurrent,
                "per_minute": every.per_minute if one.per_minute is None else one.per_minute,
                "weight": one.weight or 1,
                "paused": one.paused,
            }
            for name, one in zip(names, own, strict=True)
        ],
    }


async def _pause(service: Service, fields: Fields) -> tuple[str, int]:
    note(group=fields.get("group", ""))
    await service.queue(fields.get("name", "")).groups.pause(fields.get("group", ""))
    return "group-paused", 1


async def _resume(service: Service, fields: Fields) -> tuple[str, int]:
    note(group=fields.get("group", ""))
    await service.queue(fields.get("name", "")).groups.resume(fields.get("group", ""))
    return "group-resumed", 1


ROUTES = [action("/groups/pause", _pause), action("/groups/resume", _resume)]
