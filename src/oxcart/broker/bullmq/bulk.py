"""Operations on a whole queue: removing, retrying, promoting and counting jobs by the million.

Each is a loop of bounded steps of about half a ms, so a queue can be cleaned while workers serve it. A step
begins with 25 jobs and takes more of them while they take less time. A step that would change nothing passes
jobs that are too young, or that a filter leaves out, for a ms per call. The number of jobs at the beginning
bounds an operation: a faster producer does not keep it from ending.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Literal

from oxcart.broker.bullmq import strays
from oxcart.broker.bullmq.part import QueuePart
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.events import trim_events
from oxcart.broker.port.parts import Bulk
from oxcart.broker.progress import OnProgress, Progress, after, silent
from oxcart.broker.replies import texts
from oxcart.model.errors import QueueBusy

if TYPE_CHECKING:
    from oxcart.broker.bullmq.broker import BullMQBroker

#: Jobs that one step looks at: about half a ms of server time if all of them are changed. A step must stay
#: short on a machine that is temporarily ten times slower.
STEP = 25
#: Jobs that a step looks at, at most: those after a run of jobs that stay may all be changed.
MOST = 250
#: Microseconds of server time that a step should take.
STEP_US = 500
#: Priorities that one step counts.
PRIORITIES = 200
#: Later than any time on the wire.
FOREVER = 2**53

#: The order in which the states of a queue are removed: the peers' order, then states that they skip.
_EVERYTHING = (
    "active",
    "delayed",
    "completed",
    "paused",
    "prioritized",
    "failed",
    "wait",
    "waiting-children",
)

#: Runs an operation on one queue, for at most so many jobs; returns how many.
_Step = Callable[["BullMQBroker", int | None, OnProgress], Awaitable[int]]


class _Left(IntEnum):
    """What ``lua/obliterate.lua`` leaves of a queue."""

    NOTHING = 0
    SCHEDULES = 1
    #: Jobs were added meanwhile.
    JOBS = 2
    #: Everything, because another client resumed the queue.
    NOT_PAUSED = -1


class QueueBulk(QueuePart, Bulk):
    """Operations on the jobs of one queue and its lanes."""

    async def _over_lanes(self, step: _Step, limit: int | None, progress: OnProgress) -> int:
        done = 0
        for broker in await self._broker.lanes.brokers():
            if limit is not None and done >= limit:
                break
            done += await step(broker, None if limit is None else limit - done, after(done, progress))
        return done

    async def clean(
        self,
        states: Sequence[str],
        before_ms: int,
        *,
        limit: int | None = None,
        progress: OnProgress = silent,
    ) -> int:
        async def step(broker: BullMQBroker, limit: int | None, progress: OnProgress) -> int:
            done = 0
            for state in states:
                if limit is None or done < limit:
                    rest = None if limit is None else limit - done
                    done += await clean(broker, state, before_ms, limit=rest, progress=after(done, progress))
            return done

        return await self._over_lanes(step, limit, progress)

    async def clear(self, *, delayed: bool = False, progress: OnProgress = silent) -> int:
        states = (
            ("wait", "paused", "delayed", "prioritized") if delayed else ("wait", "paused", "prioritized")
        )

        async def step(broker: BullMQBroker, _: int | None, progress: OnProgress) -> int:
            counts = await broker.counts()
            total, done = sum(counts[state] for state in states), 0
            for state in states:
                async for removed in _sweep(broker, state, most=counts[state]):
                    done += removed
                    progress(Progress(state, done, total))
            return done

        return await self._over_lanes(step, None, progress)

    async def obliterate(self, *, force: bool = False, progress: OnProgress = silent) -> int:
        brokers = await self._broker.lanes.brokers()
        if not force and len(brokers) > 1:
            active = (await self._broker.counts_over_lanes())["active"]
            if active:
                raise QueueBusy(self._broker.queue, active)
        done = 0
        for broker in reversed(brokers):  # the lanes first: then the queue also finds their remains
            done += await _obliterate(broker, force, after(done, progress))
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

        async def step(broker: BullMQBroker, limit: int | None, progress: OnProgress) -> int:
            script, meta, key = load("retry_jobs"), broker.keys.meta(), broker.keys.key(state)
            total = int(await broker.caller.command("ZCOUNT", key, since_ms, until))
            total = total if limit is None else min(total, limit)
            done = stuck = 0
            more, fitting = 1, STEP
            while done < total and more:
                args = (state, since_ms, until, min(fitting, total - done), stuck, "1" if reset else "")
                answer = await broker.caller.once(script, meta, *args, broker.clock.argument)
                moved, unmoved, more, spent = answer
                fitting = _next_step(args[3], spent)
                done += moved
                stuck += unmoved
                progress(Progress(state, done, total))
            return done

        return await self._over_lanes(step, limit, progress)

    async def promote_all(
        self, *, until_ms: int | None = None, limit: int | None = None, progress: OnProgress = silent
    ) -> int:
        until = FOREVER if until_ms is None else until_ms

        async def step(broker: BullMQBroker, limit: int | None, progress: OnProgress) -> int:
            key = broker.keys.delayed()
            total = int(await broker.caller.command("ZCOUNT", key, 0, (until + 1) * 4096 - 1))
            total = total if limit is None else min(total, limit)
            done, fitting = 0, STEP
            score, passed = b"0", 0
            while done < total and score:
                args = (until, min(fitting, total - done), broker.clock.argument, score, passed)
                answer = await broker.caller.again(load("promote"), broker.keys.meta(), *args)
                moved, *_, spent, score, passed = answer
                fitting = _next_step(args[1], spent)
                done += moved
                progress(Progress("delayed", done, total))
            return done

        return await self._over_lanes(step, limit, progress)

    async def counts_per_priority(self, priorities: Iterable[int] | None = None) -> dict[int, int]:
        asked = None if priorities is None else list(priorities)
        found: dict[int, int] = {}
        for broker in await self._broker.lanes.brokers():
            for priority, count in (await _counts_per_priority(broker, asked)).items():
                found[priority] = found.get(priority, 0) + count
        return found

    async def trim_events(self, keep: int, *, progress: OnProgress = silent) -> int:
        return await trim_events(self._broker, keep, progress=progress)

    async def publish(self, name: str, fields: Mapping[str, str | bytes], keep: int | None = None) -> str:
        broker = self._broker
        flat = [part for field in fields.items() for part in field]
        event_id: bytes = await broker.caller.once(
            load("publish"), broker.keys.meta(), "" if keep is None else keep, name, *flat
        )
        return event_id.decode()


async def clean(
    broker: BullMQBroker,
    state: str,
    before_ms: int,
    *,
    limit: int | None = None,
    progress: OnProgress = silent,
    ids: list[str] | None = None,
) -> int:
    """Cleans one wire state of one queue, without its lanes; ``ids`` receives the ids of the removed jobs."""
    if state in ("completed", "failed"):
        total = int(await broker.caller.command("ZCOUNT", broker.keys.key(state), "-inf", before_ms))
    else:
        total = (await broker.counts())[state]
    total = total if limit is None else min(total, limit)
    done = 0
    async for removed in _sweep(broker, state, before=before_ms, limit=limit, report=True, ids=ids):
        done += removed
        progress(Progress(state, done, max(total, done)))
    return done


async def _obliterate(broker: BullMQBroker, force: bool, progress: OnProgress) -> int:
    """Removes one queue or lane. A live worker or pipeline writes its own keys again."""
    await _check_idle(broker, force)
    was_paused = await broker.is_paused()
    await broker.pause()
    try:
        await _check_idle(broker, force)  # a worker may have claimed one just before the pause
    except QueueBusy:
        if not was_paused:
            await broker.resume()
        raise
    counts = await broker.counts()
    total, done = sum(counts.values()), 0
    while True:
        for state in _EVERYTHING:
            async for removed in _sweep(broker, state, everything=True):
                done += removed
                progress(Progress(state, done, max(total, done)))
        await strays.settle_gates(broker)
        if broker.lane is None:
            await strays.remove_strays(broker)
        code = _Left.SCHEDULES
        while code == _Left.SCHEDULES:
            code, _ = await broker.caller.once(load("obliterate"), broker.keys.meta(), STEP)
        if code == _Left.NOTHING:
            if broker.lane is None:
                await broker.lanes.forget()
                await broker.caller.forget()
            return done
        if code == _Left.NOT_PAUSED:
            await broker.pause()


async def _check_idle(broker: BullMQBroker, force: bool) -> None:
    if not force and (active := (await broker.counts())["active"]):
        raise QueueBusy(broker.queue, active)


async def _sweep(
    broker: BullMQBroker,
    state: str,
    *,
    before: int | None = None,
    limit: int | None = None,
    most: int | None = None,
    everything: bool = False,
    report: bool = False,
    ids: list[str] | None = None,
) -> AsyncIterator[int]:
    """Removes jobs of a state; yields after every step how many.

    Args:
        broker: The queue.
        state: The wire's name of the state.
        before: Only jobs last touched before this time.
        limit: How many to remove at most.
        most: How many to look at, at most; None for all there are.
        everything: Whether to remove leased jobs and next runs as well.
        report: Whether to write `cleaned` events.
        ids: Receives the ids of the removed jobs.
    """
    script, meta = load("sweep"), broker.keys.meta()
    removed = looked = left = unreported = 0
    fitting = STEP
    while True:
        step = fitting
        if limit is not None:
            step = min(step, limit - removed)
        if most is not None:
            step = min(step, most - looked)
        if step <= 0:
            return
        gone, kept, more, reported, spent, *which = await broker.caller.once(
            script,
            meta,
            state,
            "" if before is None else before,
            step,
            left,
            "1" if everything else "",
            unreported if report else "",
            "" if limit is None else limit - removed,
            "" if ids is None else "1",
        )
        if ids is not None and which:
            ids += texts(which[0])
        removed += gone
        left += kept
        looked += gone + kept
        unreported = 0 if reported else unreported + gone
        fitting = _next_step(step, spent)
        yield gone
        if not more:
            return


def _next_step(step: int, spent_us: int) -> int:
    """Returns how many jobs the next step looks at: as many as fit into its time, at most twice as many."""
    if spent_us <= 0:
        return STEP
    return max(STEP, min(MOST, 2 * step, step * STEP_US // spent_us))


async def _counts_per_priority(broker: BullMQBroker, asked: Sequence[int] | None) -> dict[int, int]:
    ready = await broker.counts()
    if asked is not None:
        scores = [(p * 2**32, (p + 1) * 2**32 - 1) for p in asked if p > 0]
        found = await broker.caller.pipeline(
            [("ZCOUNT", broker.keys.prioritized(), low, high) for low, high in scores]
        )
        counted = dict(zip([p for p in asked if p > 0], found, strict=True))
        return {p: counted[p] if p > 0 else ready["wait"] + ready["paused"] for p in asked}
    result = {0: ready["wait"] + ready["paused"]} if ready["wait"] + ready["paused"] else {}
    at = 1
    while at >= 0:
        at, *flat = await broker.caller.again(load("priorities"), broker.keys.meta(), at, PRIORITIES)
        result |= dict(zip(flat[::2], flat[1::2], strict=True))
    return result
