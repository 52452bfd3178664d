"""Isolates jobs that were lost before, so that only the guilty one is lost again (docs/decisions/160).

A job that kills its process takes the attempts of its neighbours along. Its first loss counts as a stall for
all of them. From then on each of them is a suspect. A suspect that was lost once runs beside other jobs, but
few such suspects start within the time of a lease. Another loss there does not count. Afterwards the suspect
runs alone: the worker claims nothing, lets its other jobs end, commits their outcomes, and only then starts
it. A loss alone counts.

Every note reaches the server before the attempt starts, so a process may die at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable

from oxcart.broker.port import Lease
from oxcart.engine.running import RunningJob
from oxcart.model.errors import BrokerError

log = logging.getLogger("oxcart.worker")

#: How a suspect runs: beside others if it was lost once, alone if it was lost again.
BESIDE, ALONE = 0, 1
#: Seconds between checks whether the other jobs of the worker have ended.
LOOK = 0.05


def runs_alone_last(job: RunningJob) -> bool:
    """Returns whether a job has no attempt left because of its only loss, and still runs once, alone.

    The loss may have been a neighbour's doing. A job with one attempt asked to run at most once.
    """
    allowed = job.options.attempts
    isolates = job.station is not None and job.station.broker.suspects is not None
    return isolates and job.claim.stalls == 1 and 1 < allowed == job.attempts_made + 1


class Suspects:
    """The suspects that a worker has claimed and not started.

    Args:
        concurrency: How many jobs the worker may have at once.
        patience: Seconds that a lease lasts. Uncommitted outcomes of other jobs may delay a job that runs
            alone so long; afterwards their jobs run again anyway. A suspect that has run so long beside
            others makes room for the next.
        busy: Returns how many other jobs the worker has, or may have with the replies of its calls.
        drained: Waits until no claim is in flight and every outcome is committed.
        start: Starts a job.
        give_back: Returns jobs to their queue, because the server did not take the note of one of them.
        gone: Receives a job whose lease is gone. The worker may claim again afterwards.
        ended: Receives the task that works through the suspects when it has ended.
    """

    def __init__(
        self,
        concurrency: int,
        patience: float,
        *,
        busy: Callable[[], int],
        drained: Callable[[], Awaitable[None]],
        start: Callable[[RunningJob], None],
        give_back: Callable[[list[RunningJob]], None],
        gone: Callable[[RunningJob], None],
        ended: Callable[[asyncio.Task[None]], None],
    ) -> None:
        self._concurrency = concurrency
        self._patience = patience
        self._busy = busy
        self._drained = drained
        self._start = start
        self._give_back = give_back
        self._gone = gone
        self._ended = ended
        #: Most suspects that start beside other jobs before one of them ends or has run for a lease.
        self.most = math.isqrt(concurrency)
        #: How each suspect of the worker runs, until it ends.
        self.known: dict[RunningJob, int] = {}
        self._waiting: dict[int, deque[RunningJob]] = {BESIDE: deque(), ALONE: deque()}
        self._starting: list[RunningJob] = []
        self._beside: dict[RunningJob, float] = {}
        self._lone: RunningJob | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def held(self) -> int:
        """How many jobs wait to be started."""
        return sum(len(queue) for queue in self._waiting.values()) + len(self._starting)

    @property
    def load(self) -> int:
        """How many slots the suspects keep the worker from filling, beside those in which they run.

        Those that may start now have their slots, so that no claim takes these. The others have none, or many
        suspects would stop the worker. Beyond the worker's concurrency they do, so that one worker does not
        hoard them.
        """
        if self._lone is not None or self._waiting[ALONE]:
            return self._concurrency
        waiting = len(self._waiting[BESIDE])
        next_ones = min(waiting, self._room()) if waiting else 0
        return len(self._starting) + next_ones + max(0, waiting - next_ones - self._concurrency)

    def _room(self) -> int:
        """Returns how many suspects may start beside other jobs now.

        Long jobs must not keep the others back. A group that grows costs no attempt of an innocent job; more
        jobs run alone if one of them kills the worker late.
        """
        begun = asyncio.get_running_loop().time() - self._patience
        return max(0, self.most - sum(at > begun for at in self._beside.values()))

    @property
    def _has_slot(self) -> bool:
        return self._busy() + len(self._starting) < self._concurrency

    @property
    def has_lone(self) -> bool:
        """Whether a job runs alone, or is about to: no other may start."""
        return self._lone is not None

    def suspect(self, job: RunningJob) -> None:
        """Notes a claimed job if it was lost before: it must run with few other suspects, or alone."""
        claim = job.claim
        if claim.stalls > 0:
            # With one slot each job is alone, and its loss may count at once.
            lost_again = claim.stalls > 1 or claim.shared_stalls > 0
            alone = self._concurrency == 1 or lost_again or runs_alone_last(job)
            self.known[job] = ALONE if alone else BESIDE

    def take(self, job: RunningJob) -> None:
        """Takes a claimed suspect, and starts it when it may run."""
        self._waiting[self.known[job]].append(job)
        self._changed.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work(), name="oxcart-suspects")
            self._task.add_done_callback(self._ended)

    def left(self, job: RunningJob) -> None:
        """Notes that a job has ended, in case it is a suspect."""
        if self.known.pop(job, None) is None:
            return
        self._beside.pop(job, None)
        if self._lone is job:
            self._lone = None
        self._changed.set()

    def withdraw(self, job: RunningJob) -> bool:
        """Removes a suspect that must not start any more; returns whether it was waiting."""
        for waiting in self._waiting.values():
            if job in waiting:
                waiting.remove(job)
                self.left(job)
                return True
        return False

    def take_back(self) -> list[RunningJob]:
        """Removes and returns the suspects that have not started."""
        if self._task is not None:
            self._task.cancel()
        held = [job for queue in self._waiting.values() for job in queue] + self._starting
        for queue in self._waiting.values():
            queue.clear()
        self._starting = []
        for job in held:
            self.known.pop(job, None)
        return held

    async def _work(self) -> None:
        try:
            while self.held or self._lone is not None:
                self._changed.clear()
                if self._lone is None and self._waiting[ALONE]:
                    await self._next_alone()
                elif self._lone is None and self._waiting[BESIDE] and self._room() and self._has_slot:
                    await self._next_beside()
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pause()):
                        await self._changed.wait()
        finally:
            self._task = None

    def _pause(self) -> float | None:
        """Returns the seconds after which a suspect may start although nothing has changed."""
        if self._waiting[ALONE]:
            return LOOK
        if self._lone is not None or not self._waiting[BESIDE]:
            return None
        if self._room():
            return LOOK  # its slot is still another job's
        begun = asyncio.get_running_loop().time() - self._patience
        return min((at - begun for at in self._beside.values() if at > begun), default=None)

    async def _next_alone(self) -> None:
        """Starts the next suspect if nothing else of the worker can be lost with it."""
        if self._busy():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience):
                await self._drained()
        if self._busy() or not self._waiting[ALONE]:  # a claim was in flight, or the worker stops
            return
        job = self._waiting[ALONE].popleft()
        log.info(
            "queue %s: job %s runs alone, because its workers were lost",
            job.queue,
            job.id,
            extra=job.log_fields(),
        )
        self._lone = job  # before the note: nothing may be claimed meanwhile
        if not await self._begin(job, alone=True):
            self._lone = None
            self._changed.set()

    async def _next_beside(self) -> None:
        job = self._waiting[BESIDE].popleft()
        self._beside[job] = asyncio.get_running_loop().time()
        if not await self._begin(job, alone=False):
            self._beside.pop(job, None)

    async def _begin(self, job: RunningJob, *, alone: bool) -> bool:
        """Notes on the server how a job runs, and starts it; returns whether it started."""
        notes = job.station.broker.suspects
        assert notes is not None  # its broker counted the stalls
        self._starting.append(job)
        try:
            # Not for long: jobs of other servers wait behind it.
            async with asyncio.timeout(self._patience / 3):
                gone = await notes.start([Lease(job.id, job.token, job.fencing)], alone=alone)
        except (BrokerError, TimeoutError) as error:
            log.error(
                "queue %s: could not note how job %s runs, returning it: %s",
                job.queue,
                job.id,
                str(error) or "no answer in time",
                extra=job.log_fields(),
            )
            self._starting.remove(job)
            self._give_back([job, *self._of_queue(job)])
            return False
        self._starting.remove(job)
        if gone:
            self.known.pop(job, None)
            self._gone(job)
            return False
        self._start(job)
        return True

    def _of_queue(self, job: RunningJob) -> list[RunningJob]:
        """Removes and returns the waiting suspects of a job's queue: its server takes no notes."""
        self.known.pop(job, None)
        root = job.station.root
        found = [one for queue in self._waiting.values() for one in queue if one.station.root is root]
        for one in found:
            self._waiting[self.known.pop(one)].remove(one)
        return found
