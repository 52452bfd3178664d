"""The schedules of a partitioned queue: each is in one partition, which fires it once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from oxcart.broker.partitioned.bulk import SpreadPart
from oxcart.broker.partitioned.marks import Mark, alone
from oxcart.broker.partitioned.spread import PATIENCE
from oxcart.broker.port import ClaimedJob
from oxcart.broker.port.schedules import ScheduleLeader, Schedules
from oxcart.model.errors import BrokerTimeout, OxcartError
from oxcart.model.options import JobOptions
from oxcart.model.partitions import partition_of
from oxcart.model.schedule import Missed, Overlap, Schedule, Scheduler


class SpreadSchedules(SpreadPart, Schedules):
    """The schedules; the partition of one is that of its id."""

    def bound_id(self, schedule_id: str) -> str:
        return self._spread.broker(0).schedules.bound_id(schedule_id)

    async def upsert(
        self,
        schedule_id: str,
        schedule: Schedule,
        name: str,
        body: bytes,
        options: JobOptions,
        *,
        missed: Missed | None = None,
        overlap: Overlap | None = None,
        declared_by: str | None = None,
    ) -> str | None:
        spread = self._spread
        spread.check(options)
        async with self._alone(schedule_id) as mark:
            number = await self._whole(schedule_id, mark)
            if number is None:
                number = partition_of(schedule_id, spread.layout.size)
            return await spread.broker(number).schedules.upsert(
                schedule_id,
                schedule,
                name,
                body,
                options,
                missed=missed,
                overlap=overlap,
                declared_by=declared_by,
            )

    def _alone(self, schedule_id: str, *, waits: bool = True) -> AbstractAsyncContextManager[Mark | None]:
        """Keeps other clients from moving or changing a schedule."""
        return alone(self._spread, f"ox:dividing:{schedule_id}", waits=waits)

    async def _whole(self, schedule_id: str, mark: Mark | None) -> int | None:
        """Moves a schedule to its partition and completes a move that was interrupted.

        So what follows changes all that there is of it. Called while this client is alone with it. Returns
        the partition; None if there is no such schedule.
        """
        found = await self._spread.each(lambda one: one.schedules.get(schedule_id))
        numbers = [number for number, one in enumerate(found) if one is not None]
        if not numbers:
            return None
        home = self._home(schedule_id, numbers)
        there = self._spread.broker(home).schedules
        for number in numbers:
            if number != home:
                assert mark is not None
                source = self._spread.broker(number).schedules
                await there.take_over(schedule_id, source, mark.check)
        await there.finish_move(schedule_id)
        return home

    def _home(self, schedule_id: str, numbers: Sequence[int]) -> int:
        """Returns the partition that keeps a schedule, of which some partitions have copies."""
        size = self._spread.layout.size
        home = partition_of(schedule_id, size)
        return numbers[0] if home not in numbers and numbers[0] < size else home

    async def settle(self) -> None:
        """Moves schedules out of partitions that get no new jobs, and keeps one of several copies.

        Clients with different layouts that store a schedule at the same time make two copies.

        Raises:
            OxcartError: One of them could not move, or a partition did not answer; the others are in place.
        """
        spread = self._spread
        brokers = await spread.current()
        held: dict[str, list[int]] = {}
        errors: list[BaseException] = []
        silent: set[tuple[int, int]] = set()
        reads = (asyncio.wait_for(one.schedules.ids(), PATIENCE) for one in brokers)
        for number, ids in enumerate(await asyncio.gather(*reads, return_exceptions=True)):
            if isinstance(ids, BaseException):
                if not isinstance(ids, TimeoutError):
                    errors.append(ids)
                silent.add((number, number))
                continue
            for schedule_id in ids:
                held.setdefault(schedule_id, []).append(number)
        for schedule_id, numbers in held.items():
            home = self._home(schedule_id, numbers)
            moves = {(number, home) for number in numbers if number != home}
            if not moves or moves & silent:
                continue
            try:
                async with asyncio.timeout(PATIENCE), self._alone(schedule_id, waits=False) as mark:
                    if mark is not None:
                        await self._whole(schedule_id, mark)
            except TimeoutError:
                silent |= moves
            except OxcartError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        if silent:
            number, home = min(silent)
            raise BrokerTimeout(f"partition {number} or {home} did not answer: a schedule could not move")

    async def get(self, schedule_id: str) -> Scheduler | None:
        found = await self._spread.each(lambda one: one.schedules.get(schedule_id))
        return next((one for one in found if one is not None), None)

    async def page(self, first: int, last: int, *, latest: bool = False) -> list[Scheduler]:
        parts = await self._spread.each(lambda one: one.schedules.page(0, last, latest=latest))
        merged = [one for part in parts for one in part]
        merged.sort(key=lambda one: one.next_ms, reverse=latest)
        return merged[first : last + 1]

    async def count(self) -> int:
        return sum(await self._spread.each(lambda one: one.schedules.count()))

    async def remove(self, schedule_id: str) -> bool:
        async with self._alone(schedule_id):
            return any(await self._spread.each(lambda one: one.schedules.remove(schedule_id)))

    async def pause(self, schedule_id: str) -> bool:
        async with self._alone(schedule_id) as mark:
            await self._whole(schedule_id, mark)
            return any(await self._spread.each(lambda one: one.schedules.pause(schedule_id)))

    async def resume(self, schedule_id: str) -> bool:
        async with self._alone(schedule_id) as mark:
            await self._whole(schedule_id, mark)
            return any(await self._spread.each(lambda one: one.schedules.resume(schedule_id)))

    def leader(self, worker: str) -> ScheduleLeader | None:
        return None

    async def advance(self, claims: Sequence[ClaimedJob]) -> list[str | OxcartError]:
        holders = await self._spread.find([one.id for one in claims])
        answers = await asyncio.gather(*(holders[one.id].schedules.advance([one]) for one in claims))
        return [answer for (answer,) in answers]
