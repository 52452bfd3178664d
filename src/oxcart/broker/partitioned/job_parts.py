"""The parts of a partitioned queue's broker that concern one job or one window."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Literal

from oxcart.broker.partitioned.bulk import SpreadPart
from oxcart.broker.port.parts import Deduplication, Logs, Metrics, Updates, WebhookIndex
from oxcart.broker.port.results import Series
from oxcart.broker.port.steps import Steps


class SpreadDeduplication(SpreadPart, Deduplication):
    """The deduplication windows; the partition of a window is that of its id."""

    async def owner(self, name: str) -> str | None:
        owners = await self._spread.each(lambda one: one.deduplication.owner(name))
        return next((owner for owner in owners if owner is not None), None)

    async def release(self, name: str, owner: str = "") -> bool:
        return any(await self._spread.each(lambda one: one.deduplication.release(name, owner)))


class SpreadLogs(SpreadPart, Logs):
    """The logs of jobs."""

    async def append(self, job_id: str, lines: Sequence[str], keep: int | None) -> int:
        return await (await self._spread.holder(job_id)).logs.append(job_id, lines, keep)

    async def read(self, job_id: str, first: int = 0, last: int = -1) -> list[str]:
        return await (await self._spread.holder(job_id)).logs.read(job_id, first, last)

    async def clear(self, job_id: str, keep: int = 0) -> None:
        await (await self._spread.holder(job_id)).logs.clear(job_id, keep)


class SpreadUpdates(SpreadPart, Updates):
    """Changes to jobs that exist."""

    async def change_priority(self, job_id: str, priority: int, *, lifo: bool = False) -> None:
        await (await self._spread.holder(job_id)).updates.change_priority(job_id, priority, lifo=lifo)

    async def update(self, job_id: str, metadata: Mapping[str, Any], priority: int | None) -> None:
        await (await self._spread.holder(job_id)).updates.update(job_id, metadata, priority)


class SpreadSteps(SpreadPart, Steps):
    """Durable steps and signals."""

    async def keep(self, job_id: str, token: str, name: str, record: bytes) -> None:
        await (await self._spread.holder(job_id)).steps.keep(job_id, token, name, record)

    async def receive(
        self, job_id: str, token: str, name: str, signal: str, *, wait: bytes, arrived: bytes, late: bytes
    ) -> bytes:
        steps = (await self._spread.holder(job_id)).steps
        return await steps.receive(job_id, token, name, signal, wait=wait, arrived=arrived, late=late)

    async def signal(self, job_id: str, signal: str, body: bytes) -> int:
        return await (await self._spread.holder(job_id)).steps.signal(job_id, signal, body)


class SpreadMetrics(SpreadPart, Metrics):
    """Counts of ended jobs by the minute, summed."""

    async def series(self, state: Literal["completed", "failed"], first: int = 0, last: int = -1) -> Series:
        parts = await self._spread.each(lambda one: one.metrics.series(state, first, last))
        newest = max(parts, key=lambda part: part.previous_at)
        points = [sum(row) for row in zip_longest(*(part.points for part in parts), fillvalue=0)]
        return Series(
            sum(part.count for part in parts),
            points,
            max(part.total for part in parts),
            newest.previous_at,
            sum(part.previous_count for part in parts),
        )


class SpreadWebhooks(SpreadPart, WebhookIndex):
    """The jobs whose webhook is not enqueued yet; the workers of each partition send its webhooks."""

    async def enter(self, job_ids: Sequence[str], timeout: float | None = None) -> None:
        spread = self._spread
        places: dict[int, list[str]] = {}
        for job_id in job_ids:
            number = spread.placed.get(job_id)
            places.setdefault(spread.home(job_id) if number is None else number, []).append(job_id)
        for number, ids in places.items():
            await spread.broker(number).webhooks.enter(ids, timeout)

    async def scan(self) -> AsyncIterator[list[tuple[str, float]]]:
        for broker in await self._spread.current():
            async for entries in broker.webhooks.scan():
                yield entries

    async def drop(self, job_id: str) -> None:
        await self._spread.each(lambda one: one.webhooks.drop(job_id))
