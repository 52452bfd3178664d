"""Merges ordered pages of several partitions into one, reading no more of each than needed."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from oxcart.broker.port import Broker
from oxcart.model.job import Job
from oxcart.model.search import changed_ms

#: Jobs that are read from a partition at once.
STEP = 100
_END = object()


def _order(state: str) -> Callable[[Job], float]:
    """Returns by what the jobs of a wire state are sorted, the oldest first."""
    if state == "delayed":
        return lambda job: job.timestamp + job.delay
    if state == "prioritized":
        return lambda job: job.priority
    if state in ("completed", "failed"):
        return changed_ms
    return lambda job: job.timestamp


async def merged_page(
    brokers: Sequence[Broker], state: str, first: int, last: int, *, oldest: bool
) -> list[Job]:
    """Reads a range of jobs of a state from several partitions, as if they were one list."""
    wanted = last - first + 1
    step = min(STEP, last + 1)
    order = _order(state)

    def reader(broker: Broker) -> Callable[[int], Awaitable[list[Job]]]:
        return lambda at: broker.page(state, at, at + step - 1, oldest=oldest)

    rows = [_rows(reader(broker), step) for broker in brokers]
    found: list[Job] = []
    passed = 0
    async for job in merge(rows, key=lambda job: order(job) if oldest else -order(job)):
        passed += 1
        if passed > first:
            found.append(job)
            if len(found) == wanted:
                break
    return found


async def _rows(read: Callable[[int], Awaitable[list[Job]]], step: int) -> AsyncIterator[Job]:
    at = 0
    while True:
        page = await read(at)
        for job in page:
            yield job
        if not page:  # a page is shorter than its range if ids in it have no job
            return
        at += step


async def merge(rows: Sequence[AsyncIterator[Any]], key: Callable[[Any], Any]) -> AsyncIterator[Any]:
    """Yields the items of several ordered iterators in their common order."""
    heap: list[tuple[Any, int, Any]] = []

    async def push(number: int) -> None:
        item = await anext(rows[number], _END)
        if item is not _END:
            heapq.heappush(heap, (key(item), number, item))

    await asyncio.gather(*map(push, range(len(rows))))  # the first pages, all at once
    while heap:
        _, number, item = heapq.heappop(heap)
        yield item
        await push(number)
