"""How a pipeline stands: how far bronze is behind, and how long until something would be lost.

May touch: the server and the lake's manifests; no Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from oxcart.spark.access import Access
from oxcart.spark.lake import Lake
from oxcart.spark.position import is_recreated, read_position
from oxcart.spark.stream import EVENTS, Stream
from oxcart.spark.wire import Wire


class Standing(msgspec.Struct, frozen=True):
    """One stream of a pipeline.

    Attributes:
        queue: The queue.
        stream: Which of its streams.
        read: Entries in bronze.
        lag: Entries that are not yet there; None where the stream is another one now.
        lag_ms: How old the oldest of them is; 0 for none.
        kept: How many entries the queue keeps.
        lost_in_ms: When the oldest unread entry will be trimmed, at the present rate; None where it will not.
        rate: Entries a second, over what is unread.
    """

    queue: str
    stream: str
    read: int
    lag: int | None
    lag_ms: int
    kept: int
    lost_in_ms: int | None
    rate: float


def standings(
    access: Access,
    offsets: Mapping[str, Any],
    *,
    clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> list[Standing]:
    """How every stream of a pipeline stands."""
    server = access.server()
    found = []
    for key, value in sorted(offsets.items()):
        queue, _, suffix = key.partition(":")
        keys = access.keys(queue, server)
        at = read_position(value)
        with Wire(server, keys.slot() if server.is_cluster else None) as wire:
            facts, _, _ = Stream(wire, keys, suffix or EVENTS).measure()
            told = wire.call("HGET", keys.meta(), "opts.maxLenEvents")
            unread = wire.call("XRANGE", keys.key(suffix or EVENTS), f"({at.id}", "+", "COUNT", 1)
        kept = int(told or 10_000)
        lag = None if is_recreated(at, facts) else max(0, facts.added - at.n)
        oldest = int(unread[0][0].partition(b"-")[0]) if unread else 0
        lag_ms = max(0, clock() - oldest) if unread else 0
        rate = (lag or 0) * 1000 / lag_ms if lag_ms else 0.0
        room = kept - (lag or 0)
        left = int(max(0, room) * 1000 / rate) if rate else None
        found.append(Standing(queue, suffix or EVENTS, at.n, lag, lag_ms, kept, left, round(rate, 1)))
    return found


def last_ingest(lake: Lake) -> tuple[int, int] | None:
    """Number and time of the newest version that brought rows to bronze."""
    return next(((number, at) for number, at, why in reversed(lake.history()) if why == "ingest"), None)
