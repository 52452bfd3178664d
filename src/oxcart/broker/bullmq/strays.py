"""Removes the remaining keys of a queue without jobs: keys that no list names, found by a scan.

A job leaves keys that outlast it, because they concern others: its idempotency key, its
deduplication window, the journals of callers, the records of workers. A peer that dies half-way leaves some
too. The scan goes through the server in bounded steps. A script decides about each key in the same step in
which it removes it, so a job that was added meanwhile keeps all its keys.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from oxcart.broker.bullmq.gates import STEP, GateKeeper
from oxcart.broker.bullmq.keys import split_own
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.discovery import glob_escape
from oxcart.broker.replies import text
from oxcart.model.errors import AccessDenied
from oxcart.model.names import HIDDEN

if TYPE_CHECKING:
    from oxcart.broker.bullmq.broker import BullMQBroker

log = logging.getLogger("oxcart.broker")

#: Keys that one step of the scan reads, and keys that one call decides about.
SCAN, FEW = 1000, 50


async def settle_gates(broker: BullMQBroker) -> None:
    """Releases or cancels the jobs of other queues that waited for removed jobs of this one."""
    hidden = f"{broker.keys.base}{HIDDEN}"
    places = [f"{hidden}:{state}" for state in ("wait", "waiting-children", "ox:weak")]
    keeper = GateKeeper(broker)
    before = None
    while (left := await _lengths(broker, places)) != before and any(left):
        before = left
        await keeper.settle(hidden, look=STEP)


async def _lengths(broker: BullMQBroker, places: list[str]) -> list[int]:
    wait, waiting, weak = places
    return await broker.caller.pipeline([("LLEN", wait), ("ZCARD", waiting), ("SCARD", weak)])


async def remove_strays(broker: BullMQBroker) -> int:
    """Removes keys of a queue, its lanes and its gates that belong to no job; returns how many.

    Without the right to scan, keys that expire are left to their expiry.
    """
    removed, script = 0, load("remove_strays")
    try:
        async for base, ends in _keys(broker):
            for first in range(0, len(ends), FEW):
                some = ends[first : first + FEW]
                removed += await broker.caller.again(script, f"{base}:meta", broker.caller.client_id, *some)
    except AccessDenied as error:
        log.warning("queue %s: keys of removed jobs were left: %s", broker.queue, error)
    return removed


async def _keys(broker: BullMQBroker) -> AsyncIterator[tuple[str, list[str]]]:
    """Yields every key of the queue, its lanes and gates, as a prefix and the suffixes behind it."""
    pattern = f"{glob_escape(broker.keys.base)}*"
    cursor = b"0"
    while True:
        cursor, keys = await broker.caller.command("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN)
        found: dict[str, list[str]] = {}
        for key in keys:
            own = split_own(text(key), broker.keys.base)
            if own is not None:
                found.setdefault(own[0], []).append(own[1])
        for begin, ends in found.items():
            yield begin, ends
        if cursor == b"0":
            return
