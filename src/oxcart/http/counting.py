"""Counts of jobs by formal state, which the wire does not keep apart: all callers share what was read."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Annotated

import msgspec
from msgspec import Meta

from oxcart.http import values
from oxcart.model.state import State
from oxcart.queue import Queue

#: Jobs that a count reads at most, of the delayed and of the failed each.
SCAN = 2000
#: Seconds for which what was read of a queue counts, and the jobs up to which a change is read at once.
FRESH, SMALL = 5.0, 500


class QueueStats(msgspec.Struct, kw_only=True):
    """How many jobs are in each formal state."""

    pending: int = 0
    scheduled: int = 0
    running: int = 0
    delayed: int = 0
    retrying: int = 0
    completed: int = 0
    failed: int = 0
    dead_letter: int = 0
    cancelled: int = 0
    total_jobs: int = 0
    storage_bytes: Annotated[int | None, Meta(description="Not measured.")] = None
    exact: Annotated[
        bool,
        Meta(
            description="Whether all delayed and failed jobs were read. Otherwise retrying, dead_letter and "
            "cancelled are lower bounds, and the others count as delayed and failed."
        ),
    ] = True
    timestamp: values.Time = ""


class _Mix(msgspec.Struct, frozen=True):
    """What the delayed and the failed jobs of a queue are.

    Attributes:
        states: How many are in another formal state than the name of their list says.
        is_whole: Whether all were read.
        lengths: How many were delayed and failed then.
        at: When, by the clock of this process.
    """

    states: Counter[State]
    is_whole: bool
    lengths: tuple[int, int]
    at: float


class FormalCounts:
    """Counts jobs by formal state. What was read of a queue is kept for a moment and shared."""

    def __init__(self) -> None:
        self._known: dict[Queue, _Mix] = {}
        self._locks: dict[Queue, asyncio.Lock] = {}

    async def of(self, queue: Queue) -> QueueStats:
        """Returns how many jobs of a queue are in each formal state.

        The wire counts delayed and retrying jobs together, and all that failed: they are read up to a bound.
        """
        async with self._locks.setdefault(queue, asyncio.Lock()):
            wire = await queue.counts()
            mix = await self._mix(queue, (wire["delayed"], wire["failed"]))
        held = min(mix.states[State.SCHEDULED], wire["delayed"])
        retrying = min(mix.states[State.RETRYING], wire["delayed"] - held)
        cancelled = min(mix.states[State.CANCELLED], wire["failed"])
        dead = min(mix.states[State.DEAD_LETTER], wire["failed"] - cancelled)
        return QueueStats(
            pending=wire["waiting-children"],
            scheduled=wire["waiting"] + wire["prioritized"] + held,
            running=wire["active"],
            delayed=wire["delayed"] - retrying - held,
            retrying=retrying,
            completed=wire["completed"],
            failed=wire["failed"] - dead - cancelled,
            dead_letter=dead,
            cancelled=cancelled,
            total_jobs=sum(wire.values()),
            exact=mix.is_whole and mix.lengths == (wire["delayed"], wire["failed"]),
        )

    async def _mix(self, queue: Queue, lengths: tuple[int, int]) -> _Mix:
        known = self._known.get(queue)
        is_fresh = known is not None and time.monotonic() - known.at < FRESH
        if known is not None and is_fresh and (known.lengths == lengths or sum(lengths) > SMALL):
            return known
        delayed, failed = await asyncio.gather(
            queue.jobs.search(state="delayed", limit=1, scan=SCAN),
            queue.jobs.search(state="failed", limit=1, scan=SCAN),
        )
        states = delayed.other_states + failed.other_states
        made = _Mix(states, delayed.exact and failed.exact, lengths, time.monotonic())
        self._known[queue] = made
        return made
