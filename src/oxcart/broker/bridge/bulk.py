"""Operations on many jobs of a Bridge type: removes, retries, promotes and counts them, in bounded steps.

A step processes 50 jobs in one call and leaves the server free in between.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from oxcart.broker.bridge import codec, members, records
from oxcart.broker.bridge.part import TypePart
from oxcart.broker.bridge.scripts import load
from oxcart.broker.events import trim_events
from oxcart.broker.port.parts import Bulk
from oxcart.broker.progress import OnProgress, Progress, silent
from oxcart.model.errors import QueueBusy

if TYPE_CHECKING:
    from oxcart.broker.bridge.broker import BridgeBroker
    from oxcart.model.job import Job

#: Jobs that one step processes.
STEP = 50
#: The order in which the states of a type are removed.
EVERYTHING = ("active", "delayed", "waiting-children", "wait", "completed", "failed")


async def remove(broker: BridgeBroker, ids: Sequence[str], *, force: bool = False) -> list[int]:
    """Removes jobs; returns a code for each, as ``remove_job.lua`` does."""
    codes: list[int] = []
    for start in range(0, len(ids), STEP):
        args = (broker.queue, "1" if force else "", *ids[start : start + STEP])
        codes += await broker.caller.once(load("remove_job"), broker.keys.waiting(), *args)
    return codes


async def promote(broker: BridgeBroker, ids: Sequence[str]) -> list[int]:
    """Promotes delayed jobs now; returns a code for each, as ``promote_job.lua`` does."""
    codes: list[int] = []
    for start in range(0, len(ids), STEP):
        args: list[bytes | str] = [broker.queue]
        for one, raw in await _records(broker, ids[start : start + STEP]):
            args += (one, records.read_record(raw).facts(broker.queue).packed())
        codes += await broker.caller.once(load("promote_job"), broker.keys.waiting(), *args)
    return codes


async def retry(
    broker: BridgeBroker, ids: Sequence[str], *, lifo: bool = False, reset: bool = False
) -> list[int]:
    """Lets ended jobs run again; returns a code for each, as ``retry_job.lua`` does."""
    codes: list[int] = []
    for start in range(0, len(ids), STEP):
        args: list[bytes | str] = [broker.queue, "L" if lifo else ""]
        for one, raw in await _records(broker, ids[start : start + STEP]):
            new = codec.with_members(raw, attempts=b"0") if reset and members.members_of(raw) else b""
            record = records.read_record(new or raw)
            event = records.added_fields(
                record.name, record.ox.get("corr"), record.metadata, record.created_at
            )
            args += (one, record.facts(broker.queue).packed(), new, event)
        codes += await broker.caller.once(load("retry_job"), broker.keys.waiting(), *args)
    return codes


async def _records(broker: BridgeBroker, ids: Sequence[str]) -> list[tuple[str, bytes]]:
    raws = await broker.caller.command("MGET", *map(broker.keys.data, ids))
    return [(one, raw or b"") for one, raw in zip(ids, raws, strict=True)]


class TypeBulk(TypePart, Bulk):
    """Operations on the jobs of one type."""

    async def clean(
        self,
        states: Sequence[str],
        before_ms: int,
        *,
        limit: int | None = None,
        progress: OnProgress = silent,
    ) -> int:
        done = 0
        for state in states:
            rest = None if limit is None else limit - done
            done += await self._in_steps(
                state, lambda job: _touched(job) <= before_ms, self._remove, rest, progress
            )
        return done

    async def clear(self, *, delayed: bool = False, progress: OnProgress = silent) -> int:
        return await self._remove_all(("wait", "delayed") if delayed else ("wait",), False, progress)

    async def obliterate(self, *, force: bool = False, progress: OnProgress = silent) -> int:
        broker = self._broker
        active = len(await broker.ids("active"))
        if active and not force:
            raise QueueBusy(broker.queue, active)
        await broker.pause()
        done = await self._remove_all(EVERYTHING, force, progress)
        foreign = (await broker.census.unnoted_ends()).get(broker.queue, [])
        done += (await remove(broker, foreign, force=force)).count(1)
        for schedule in await broker.schedules.page(0, await broker.schedules.count()):
            await broker.schedules.remove(schedule.id)
        await broker.caller.again(load("obliterate"), broker.keys.waiting(), broker.queue)
        return done

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
        until = await self._broker.now() if until_ms is None else until_ms
        return await self._in_steps(
            state,
            lambda job: since_ms <= (job.finished_on or 0) <= until,
            lambda ids: retry(self._broker, ids, reset=reset),
            limit,
            progress,
        )

    async def promote_all(
        self, *, until_ms: int | None = None, limit: int | None = None, progress: OnProgress = silent
    ) -> int:
        broker = self._broker
        ids = await broker.ids("delayed")
        if until_ms is not None and ids:
            due = await broker.caller.command("ZMSCORE", broker.keys.delayed(), *ids)
            ids = [one for one, at in zip(ids, due, strict=True) if at is not None and float(at) <= until_ms]
        ids = ids if limit is None else ids[:limit]
        done = 0
        for start in range(0, len(ids), STEP):
            done += (await promote(broker, ids[start : start + STEP])).count(1)
            progress(Progress("delayed", min(start + STEP, len(ids)), len(ids)))
        return done

    async def counts_per_priority(self, priorities: Iterable[int] | None = None) -> dict[int, int]:
        """Counts by Bridge's priorities, from 1 to 10, of which 10 runs first."""
        broker, counted = self._broker, dict[int, int]()
        async for ids in broker.census.pages("waiting"):
            for kind in await broker.census.kinds(ids):
                if kind is not None and kind.type == broker.queue:
                    counted[kind.priority] = counted.get(kind.priority, 0) + 1
        asked = sorted(counted) if priorities is None else priorities
        return {one: counted.get(one, 0) for one in asked}

    async def trim_events(self, keep: int, *, progress: OnProgress = silent) -> int:
        return await trim_events(self._broker, keep, progress=progress)

    async def publish(self, name: str, fields: Mapping[str, str | bytes], keep: int | None = None) -> str:
        broker = self._broker
        flat = [part for field in fields.items() for part in field]
        event_id: bytes = await broker.caller.once(
            load("publish"), broker.keys.waiting(), broker.queue, "" if keep is None else keep, name, *flat
        )
        return event_id.decode()

    async def _remove(self, ids: Sequence[str]) -> list[int]:
        return await remove(self._broker, ids)

    async def _in_steps(
        self,
        state: str,
        fits: Callable[[Job], bool],
        apply: Callable[[Sequence[str]], Awaitable[list[int]]],
        limit: int | None,
        progress: OnProgress,
    ) -> int:
        """Applies a call to the matching jobs of a state, oldest first; returns how many it changed."""
        ids = await self._broker.ids(state)
        done = 0
        for start in range(0, len(ids), STEP):
            jobs = await self._broker.read_jobs(ids[start : start + STEP])
            chosen = [job.id for job in jobs if fits(job)]
            chosen = chosen if limit is None else chosen[: limit - done]
            done += (await apply(chosen)).count(1)
            progress(Progress(state, min(start + STEP, len(ids)), len(ids)))
            if limit is not None and done >= limit:
                break
        return done

    async def _remove_all(self, states: Iterable[str], force: bool, progress: OnProgress) -> int:
        done = 0
        for state in states:
            ids = await self._broker.ids(state)
            for start in range(0, len(ids), STEP):
                done += (await remove(self._broker, ids[start : start + STEP], force=force)).count(1)
                progress(Progress(state, min(start + STEP, len(ids)), len(ids)))
        return done


def _touched(job: Job) -> int:
    return job.finished_on or job.processed_on or job.timestamp
