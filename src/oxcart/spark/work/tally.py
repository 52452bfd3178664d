"""Counts the ends of the attempts of a task, and remembers the retries that it caused."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from oxcart.broker.port import Code, Outcome, OutcomeKind
from oxcart.engine.running import RunningJob
from oxcart.model.errors import ReplyCode
from oxcart.model.failure import Category

_DONE = (ReplyCode.DONE, ReplyCode.DONE_WITHOUT_PARENT)


class JobsRun(msgspec.Struct, frozen=True, kw_only=True):
    """What `run_jobs` did. Each attempt is counted once, under how it ended.

    Attributes:
        completed: Jobs that completed.
        failed: Jobs that failed for good; dead letters included.
        cancelled: Jobs that ended as cancelled.
        retried: Attempts that failed and whose job is tried again.
        snoozed: Attempts that ended with their job delayed, without a failure; jobs without a handler too.
        returned: Attempts whose job went back to its queue, for example at the end of the time.
        waiting: Attempts that ended to wait for the job's children.
        refused: Outcomes that the server refused, because the lease was lost.
        tasks: Spark tasks that ran jobs.
        restarts: Tasks that Spark started again. The counts lack what their lost predecessors did.
        seconds: How long the run took.
        left: Jobs of the queue by state at the end, those that ended excluded.
    """

    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    retried: int = 0
    snoozed: int = 0
    returned: int = 0
    waiting: int = 0
    refused: int = 0
    tasks: int = 0
    restarts: int = 0
    seconds: float = 0.0
    left: dict[str, int] = {}

    @property
    def attempts(self) -> int:
        """All attempts that ended."""
        return sum(getattr(self, name) for name in ENDS)


#: The fields of `JobsRun` that count attempts.
ENDS = ("completed", "failed", "cancelled", "retried", "snoozed", "returned", "waiting", "refused")


class Tally:
    """An observer of a task's worker.

    Args:
        linger: Seconds for which a retry is waited for; later ones are left to other workers.
        clock: Seconds of a monotonic clock.

    Attributes:
        counts: Attempts by how they ended.
        retries: Retries that this task caused, by job: when each is due.
    """

    def __init__(self, linger: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts = dict.fromkeys(ENDS, 0)
        self._started: set[RunningJob] = set()
        self.retries: dict[str, float] = {}
        self._linger = linger
        self._clock = clock

    @property
    def running(self) -> int:
        """Attempts under way."""
        return len(self._started)

    def job_started(self, job: RunningJob) -> None:
        """Counts a running attempt."""
        self._started.add(job)
        self.retries.pop(job.id, None)

    def job_ended(self, job: RunningJob, outcome: Outcome, code: Code, seconds: float) -> None:
        """Counts an ended attempt."""
        self._started.discard(job)  # a job that was delayed or returned at once never started
        self.counts[_end_of(outcome, code)] += 1
        kind = outcome.kind
        if code in _DONE and kind in (OutcomeKind.RETRY, OutcomeKind.DELAY) and outcome.category:
            wait = outcome.delay_ms / 1000
            if wait <= self._linger:
                self.retries[job.id] = self._clock() + wait

    def called(self, queue: str, ended: int, claimed: int, seconds: float) -> None:
        """Nothing is counted here."""

    def scripted(self, verb: str, seconds: float) -> None:
        """Nothing is counted here."""

    def renewed(self, queue: str, leases: int, seconds: float) -> None:
        """Nothing is counted here."""

    def renewal_failed(self, queue: str, leases: int) -> None:
        """Nothing is counted here."""

    def stalled(self, queue: str, job_ids: Sequence[str]) -> None:
        """Nothing is counted here."""

    def check_skipped(self, queue: str) -> None:
        """Nothing is counted here."""

    def reconnecting(self) -> None:
        """Nothing is counted here."""

    def connection(self, up: bool) -> None:
        """Nothing is counted here."""

    def workers(self, change: int) -> None:
        """Nothing is counted here."""


def _end_of(outcome: Outcome, code: Code) -> str:
    if code not in _DONE:
        return "refused"
    match outcome.kind:
        case OutcomeKind.COMPLETED:
            return "completed"
        case OutcomeKind.FAILED:
            return "cancelled" if outcome.category == Category.CANCELLED.value else "failed"
        case OutcomeKind.RETRY | OutcomeKind.DELAY:
            return "retried" if outcome.category else "snoozed"
        case OutcomeKind.AWAIT_CHILDREN:
            return "waiting"
        case _:
            return "returned"
