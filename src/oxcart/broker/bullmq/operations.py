"""Operations on a whole queue: removing, retrying, promoting and counting jobs by the million.

Each is a loop of bounded steps: a step looks at 25 jobs in one call of about half a ms and leaves the
server free in between, so a queue can be cleaned while workers serve it. What an operation found when it
began bounds its work, so that a producer who is faster does not keep it from ending. One that is interrupted
has done what it had done; to call it again goes on from there.

Jobs that move between states meanwhile may be missed, as they may have moved just before the call.

May touch: the server, through a queue's broker.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Literal

import msgspec

from oxcart.broker.bullmq import strays
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.port import ServedBroker
from oxcart.broker.progress import Progress, Told, silent
from oxcart.model.errors import QueueBusy

#: Jobs that one step looks at: about half a ms of the server's time, by what is done to them, so that a step
#: stays short where a machine is ten times slower for a while.
STEP = 25
#: Priorities that one step counts.
PRIORITIES = 200
#: Events that one step of a trim drops at most; streams are cut by whole nodes of about a hundred.
TRIM = 10_000
#: Later than any time on the wire.
FOREVER = 2**53

#: What of a queue is removed in which order when all of it goes: as peers do, then what they forget.
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


class Series(msgspec.Struct, frozen=True):
    """How many jobs ended, by the minute.

    Attributes:
        count: How many have ended in all since somebody counts.
        points: How many ended per minute, the newest minute first. The current one is not among them.
        total: How many points there are, where only some were asked for.
        previous_at: When the newest point was made, in ms; 0 for never.
        previous_count: What ``count`` was then.
    """

    count: int
    points: list[int]
    total: int
    previous_at: int
    previous_count: int


async def clean(
    broker: BullMQBroker,
    state: str,
    before_ms: int,
    *,
    limit: int | None = None,
    told: Told = silent,
    ids: list[str] | None = None,
) -> int:
    """Removes the jobs of a wire state that were last touched before a time; returns how many.

    Args:
        broker: The queue.
        state: The wire's name of the state.
        before_ms: A finished job counts by its end, another by its last start, else by its creation.
        limit: How many to remove at most, oldest first.
        told: Told after every step.
        ids: Takes the ids of those that were removed, where somebody wants to know.
    """
    total = await _at_most(broker, state, before_ms, limit)
    done = 0
    async for removed in _sweep(broker, state, before=before_ms, limit=limit, report=True, ids=ids):
        done += removed
        told(Progress(state, done, max(total, done)))
    return done


async def _at_most(broker: BullMQBroker, state: str, before_ms: int, limit: int | None) -> int:
    """How many jobs a clean may have to remove: exact for finished ones, for others the length."""
    if state in ("completed", "failed"):
        found = int(await broker.caller.command("ZCOUNT", broker.keys.key(state), "-inf", before_ms))
    else:
        found = (await broker.counts())[state]
    return found if limit is None else min(found, limit)


async def drain(broker: BullMQBroker, *, delayed: bool = False, told: Told = silent) -> int:
    """Removes every job that waits, but for the next runs of schedulers; returns how many.

    Args:
        broker: The queue.
        delayed: Whether jobs whose time has not come go as well.
        told: Told after every step.
    """
    counts = await broker.counts()
    states = ("wait", "paused", "delayed", "prioritized") if delayed else ("wait", "paused", "prioritized")
    total, done = sum(counts[state] for state in states), 0
    for state in states:
        async for removed in _sweep(broker, state, most=counts[state]):
            done += removed
            told(Progress(state, done, total))
    return done


async def obliterate(broker: BullMQBroker, *, force: bool = False, told: Told = silent) -> int:
    """Removes the queue with all that belongs to it; returns how many jobs it had.

    Of a queue with lanes the lanes go first, each by a call of its own: then this one finds what is left of
    them as well. A live worker or pipeline writes its own keys again.

    Args:
        broker: The queue, or a lane of one.
        force: Whether jobs that workers hold go as well; their results will be refused.
        told: Told after every step.

    Raises:
        QueueBusy: Workers hold jobs of it, and ``force`` was not said. Nothing has changed.
    """
    await _check_idle(broker, force)
    was_paused = await broker.is_paused()
    await broker.pause()
    try:
        await _check_idle(broker, force)  # one may have been taken just before the pause
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
                told(Progress(state, done, max(total, done)))
        await strays.settle_gates(broker)
        if broker.lane is None:
            await strays.remove_strays(broker)
        code = 1
        while code == 1:
            code, _ = await broker.caller.once(load("obliterate"), broker.keys.meta(), STEP)
        if code == 0:
            if broker.lane is None:
                await broker.lanes.forget()
                await broker.caller.forget()
            return done
        if code == -1:  # somebody resumed it meanwhile
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
    """Removes jobs of a state, and says after every step how many.

    Args:
        broker: The queue.
        state: The wire's name of the state.
        before: Only jobs last touched before this time.
        limit: How many to remove at most.
        most: How many to look at, at most; None for all there are.
        everything: Whether leased jobs and next runs go as well.
        report: Whether `cleaned` events are written.
        ids: Takes the ids of those that were removed.
    """
    script, meta = load("sweep"), broker.keys.meta()
    removed = looked = left = unreported = 0
    while True:
        step = STEP
        if limit is not None:
            step = min(step, limit - removed)
        if most is not None:
            step = min(step, most - looked)
        if step <= 0:
            return
        gone, kept, more, reported, *which = await broker.caller.once(
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
            ids += (raw.decode("utf-8", "surrogateescape") for raw in which[0])
        removed += gone
        left += kept
        looked += gone + kept
        unreported = 0 if reported else unreported + gone
        yield gone
        if not more:
            return


async def retry_all(
    broker: BullMQBroker,
    state: Literal["failed", "completed"],
    *,
    since_ms: int = 0,
    until_ms: int | None = None,
    limit: int | None = None,
    reset: bool = False,
    told: Told = silent,
) -> int:
    """Lets finished jobs run again, oldest end first; returns how many.

    Args:
        broker: The queue.
        state: Which of them.
        since_ms: Only those that ended at this time or later.
        until_ms: Only those that ended at this time or earlier; now unless given, so that a job which fails
            again while this goes on is not run a third time.
        limit: How many at most.
        reset: Whether to count their attempts from the beginning.
        told: Told after every step.
    """
    until = await broker.now() if until_ms is None else until_ms
    script, meta, key = load("retry_jobs"), broker.keys.meta(), broker.keys.key(state)
    total = int(await broker.caller.command("ZCOUNT", key, since_ms, until))
    total = total if limit is None else min(total, limit)
    done = stuck = 0
    while done < total:
        step = min(STEP, total - done)
        moved, unmoved, more = await broker.caller.once(
            script, meta, state, since_ms, until, step, stuck, "1" if reset else "", broker.clock.argument
        )
        done += moved
        stuck += unmoved
        told(Progress(state, done, total))
        if not more:
            break
    return done


async def promote_all(
    broker: BullMQBroker, *, until_ms: int | None = None, limit: int | None = None, told: Told = silent
) -> int:
    """Lets delayed jobs run now, the earliest due first; returns how many.

    Args:
        broker: The queue.
        until_ms: Only those that are due at this time or earlier.
        limit: How many at most.
        told: Told after every step.
    """
    until = FOREVER if until_ms is None else until_ms
    script, meta = load("promote"), broker.keys.meta()
    total = int(await broker.caller.command("ZCOUNT", broker.keys.delayed(), 0, (until + 1) * 4096 - 1))
    total = total if limit is None else min(total, limit)
    done = 0
    while done < total:
        moved, *_ = await broker.caller.again(
            script, meta, until, min(STEP, total - done), broker.clock.argument
        )
        if not moved:
            break
        done += moved
        told(Progress("delayed", done, total))
    return done


async def counts_per_priority(
    broker: BullMQBroker, priorities: Iterable[int] | None = None
) -> dict[int, int]:
    """How many jobs wait with each priority; 0 is that of jobs without one.

    Args:
        broker: The queue.
        priorities: Which; all that some job has unless given.
    """
    ready = await broker.counts()
    if priorities is not None:
        asked = list(priorities)
        scores = [(p * 2**32, (p + 1) * 2**32 - 1) for p in asked if p > 0]
        found = await broker.caller.pipeline(
            [("ZCOUNT", broker.keys.prioritized(), low, high) for low, high in scores]
        )
        counted = dict(zip([p for p in asked if p > 0], found, strict=True))
        return {p: counted[p] if p > 0 else ready["wait"] + ready["paused"] for p in asked}
    result = {0: ready["wait"] + ready["paused"]} if ready["wait"] + ready["paused"] else {}
    at = 1
    while at >= 0:
        answer = await broker.caller.again(load("priorities"), broker.keys.meta(), at, PRIORITIES)
        at = answer[0]
        result |= dict(zip(answer[1::2], answer[2::2], strict=True))
    return result


async def series(
    broker: BullMQBroker, state: Literal["completed", "failed"], first: int = 0, last: int = -1
) -> Series:
    """Reads how many jobs ended per minute, where workers count them.

    Args:
        broker: The queue.
        state: Which of them.
        first: The first point, the newest being 0.
        last: The last point, inclusive; -1 for the oldest.
    """
    key = broker.keys.metrics(state)
    kept, points, total = await broker.caller.pipeline(
        [
            ("HMGET", key, "count", "prevTS", "prevCount"),
            ("LRANGE", f"{key}:data", first, last),
            ("LLEN", f"{key}:data"),
        ]
    )
    count, at, before = (_number(raw) for raw in kept)
    return Series(count, [_number(point) for point in points], total, at, before)


def _number(raw: bytes | None) -> int:
    try:
        return int(float(raw)) if raw else 0
    except (ValueError, OverflowError):
        return 0


async def trim_events(broker: ServedBroker, keep: int, *, told: Told = silent) -> int:
    """Drops the oldest events, down to about so many; returns how many."""
    events = broker.keys.events()
    total = max(0, int(await broker.caller.command("XLEN", events)) - keep)
    done = 0
    while True:
        # Not exact: a stream is cut by whole nodes. A trim that is repeated drops nothing more.
        dropped = int(await broker.caller.command("XTRIM", events, "MAXLEN", "~", keep, "LIMIT", TRIM))
        if not dropped:
            return done
        done += dropped
        told(Progress("events", done, max(total, done)))


async def publish(
    broker: BullMQBroker, name: str, fields: Mapping[str, str | bytes], keep: int | None = None
) -> str:
    """Adds an event of the application's own to the queue's stream; returns its id."""
    flat: list[str | bytes] = []
    for field, value in fields.items():
        flat += (field, value)
    answer = await broker.caller.once(
        load("publish"), broker.keys.meta(), "" if keep is None else keep, name, *flat
    )
    event_id: bytes = answer
    return event_id.decode()
