"""Operations on many jobs of a partitioned queue, in one partition after another.

With a limit, the partitions are gone through by their numbers: "oldest first" holds within each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.partitioned.spread import Spread
from oxcart.broker.port import Code
from oxcart.broker.port.parts import Bulk, Cancelling, DeadLetters, Rescue
from oxcart.broker.port.results import Cancelled, DeadDone, DeadVerb, DeadWork, Rescued
from oxcart.broker.progress import OnProgress, after, silent
from oxcart.model.errors import QueueBusy
from oxcart.model.filter import JobFilter


class SpreadPart:
    """A part of the broker of a partitioned queue."""

    def __init__(self, spread: Spread) -> None:
        self._spread = spread

    async def _in_turn(
        self,
        work: Callable[[BullMQBroker, int | None, OnProgress], Awaitable[int]],
        limit: int | None,
        progress: OnProgress,
    ) -> int:
        """Works through the partitions until a limit is reached; returns the sum."""
        done = 0
        for broker in await self._spread.current():
            left = None if limit is None else limit - done
            if left == 0:
                break
            done += await work(broker, left, after(done, progress))
        return done


class SpreadBulk(SpreadPart, Bulk):
    """Operations on many jobs."""

    async def clean(
        self,
        states: Sequence[str],
        before_ms: int,
        *,
        limit: int | None = None,
        progress: OnProgress = silent,
    ) -> int:
        return await self._in_turn(
            lambda one, left, report: one.bulk.clean(states, before_ms, limit=left, progress=report),
            limit,
            progress,
        )

    async def clear(self, *, delayed: bool = False, progress: OnProgress = silent) -> int:
        return await self._in_turn(
            lambda one, _, report: one.bulk.clear(delayed=delayed, progress=report), None, progress
        )

    async def obliterate(self, *, force: bool = False, progress: OnProgress = silent) -> int:
        spread = self._spread
        if not force:
            counts = await spread.each(lambda one: one.counts_over_lanes())
            if active := sum(one["active"] for one in counts):
                raise QueueBusy(spread.queue, active)
        done = 0
        for broker in await spread.ever():
            done += await broker.bulk.obliterate(force=force, progress=after(done, progress))
        return done  # the next client writes the layout again, as it knows it

    async def retry_all(
        self,
        state: Literal["failed", "completed"],
        *,
        since_ms: int = 0,
        until_ms: int | None = None,
        limit: int | None = None,
        reset: bool = False,
        progress: OnProgress = silent,
    ) -> int:
        return await self._in_turn(
            lambda one, left, report: one.bulk.retry_all(
                state, since_ms=since_ms, until_ms=until_ms, limit=left, reset=reset, progress=report
            ),
            limit,
            progress,
        )

    async def promote_all(
        self, *, until_ms: int | None = None, limit: int | None = None, progress: OnProgress = silent
    ) -> int:
        return await self._in_turn(
            lambda one, left, report: one.bulk.promote_all(until_ms=until_ms, limit=left, progress=report),
            limit,
            progress,
        )

    async def counts_per_priority(self, priorities: Iterable[int] | None = None) -> dict[int, int]:
        asked = None if priorities is None else [*priorities]
        summed: Counter[int] = Counter()
        for part in await self._spread.each(lambda one: one.bulk.counts_per_priority(asked)):
            for priority, many in part.items():
                summed[priority] += many
        return dict(sorted(summed.items()))

    async def trim_events(self, keep: int, *, progress: OnProgress = silent) -> int:
        each = -(-keep // len(await self._spread.current()))
        return await self._in_turn(
            lambda one, _, report: one.bulk.trim_events(each, progress=report), None, progress
        )

    async def publish(self, name: str, fields: Mapping[str, str | bytes], keep: int | None = None) -> str:
        await self._spread.ready()
        return await self._spread.broker(0).bulk.publish(name, fields, keep)


class SpreadRescue(SpreadPart, Rescue):
    """The search for jobs that are in no list."""

    async def run(self, *, dry_run: bool = False, progress: OnProgress = silent) -> Rescued:
        found = Rescued()
        for broker in await self._spread.current():
            part = await broker.rescue.run(dry_run=dry_run, progress=progress)
            found.looked_at += part.looked_at
            found.rescued = [*found.rescued, *part.rescued]
            found.leased = [*found.leased, *part.leased]
            found.ended = [*found.ended, *part.ended]
        return found

    async def remove_orphans(self, *, dry_run: bool = False, progress: OnProgress = silent) -> list[str]:
        found: list[str] = []
        for broker in await self._spread.current():
            found += await broker.rescue.remove_orphans(dry_run=dry_run, progress=progress)
        return found


class SpreadCancelling(SpreadPart, Cancelling):
    """Cancels jobs."""

    async def cancel(self, ids: Sequence[str], reason: str, *, force: bool) -> list[Code]:
        holders = await self._spread.find(ids)
        codes: dict[str, Code] = {}
        for broker in dict.fromkeys(holders.values()):
            own = [job_id for job_id, one in holders.items() if one is broker]
            answers = await broker.cancelling.cancel(own, reason, force=force)
            codes |= dict(zip(own, answers, strict=True))
        return [codes[job_id] for job_id in ids]

    async def cancel_all(
        self,
        chosen: JobFilter,
        states: Iterable[str],
        reason: str,
        *,
        force: bool = False,
        dry_run: bool = False,
        limit: int | None = None,
        progress: OnProgress = silent,
    ) -> Cancelled:
        found, wire = Cancelled(dry_run=dry_run), [*states]
        for broker in await self._spread.current():
            left = None if limit is None else limit - found.matched
            if left == 0:
                break
            part = await broker.cancelling.cancel_all(
                chosen,
                wire,
                reason,
                force=force,
                dry_run=dry_run,
                limit=left,
                progress=after(found.matched, progress),
            )
            found.matched += part.matched
            found.cancelled += part.cancelled
            found.asked += part.asked
            found.refused += part.refused
            found.ids = [*found.ids, *part.ids]
        return found


class SpreadDeadLetters(SpreadPart, DeadLetters):
    """Finds, replays and removes dead letters."""

    async def run(self, work: DeadWork) -> DeadDone:
        done = DeadDone()
        for broker in await self._spread.current():
            left = None if work.limit is None else work.limit - done.matched
            if left == 0:
                break
            report = after(done.matched, work.progress)
            part = await broker.dead_letters.run(msgspec.structs.replace(work, limit=left, progress=report))
            done.matched += part.matched
            done.done += part.done
            done.ids = [*done.ids, *part.ids]
            done.dry_run = part.dry_run
        return done

    async def apply(
        self, verb: DeadVerb, ids: Sequence[str], *, reset: bool = False, permanent: bool = False
    ) -> list[str]:
        holders = await self._spread.find(ids)
        done: list[str] = []
        for broker in dict.fromkeys(holders.values()):
            own = [job_id for job_id, one in holders.items() if one is broker]
            done += await broker.dead_letters.apply(verb, own, reset=reset, permanent=permanent)
        return done
