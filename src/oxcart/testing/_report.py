"""Reports of the attempts that ran."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from oxcart.broker.port import Code, Outcome, OutcomeKind
from oxcart.engine.running import RunningJob
from oxcart.model import payload
from oxcart.model.errors import JobFailed, ReplyCode
from oxcart.model.failure import Category
from oxcart.model.job import Job

End = Literal["completed", "failed", "cancelled", "retried", "snoozed", "given back", "waiting", "refused"]

_FAILED = (OutcomeKind.FAILED, OutcomeKind.RETRY, OutcomeKind.DELAY)
_ENDS: dict[OutcomeKind, End] = {
    OutcomeKind.COMPLETED: "completed",
    OutcomeKind.RETRY: "retried",
    OutcomeKind.DELAY: "retried",
    OutcomeKind.AWAIT_CHILDREN: "waiting",
}


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt that ended.

    Attributes:
        queue: The queue.
        job_id: The job.
        name: Its name.
        attempt: The number of the attempt, from 1.
        end: How it ended; ``refused`` if the worker had lost the job's lease.
        value: The result of a completed job.
        reason: Why it failed or is retried.
        category: The category of a failure for good.
        delay_ms: Ms until the job's next attempt.
        seconds: How long it took.
    """

    queue: str
    job_id: str
    name: str
    attempt: int
    end: End
    value: Any = None
    reason: str | None = None
    category: str | None = None
    delay_ms: int = 0
    seconds: float = 0.0


class Report:
    """The attempts that ran.

    Attributes:
        attempts: Every attempt, in the order in which they ended.
        unhandled: Jobs that did not run, because their names have no handler.
        suspended: Jobs that ``drain`` left, because they sleep or wait for a signal.
    """

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.unhandled: list[Job] = []
        self.suspended: list[Job] = []

    def __repr__(self) -> str:
        return f"Report({self.counts})"

    @property
    def counts(self) -> dict[str, int]:
        """The number of attempts for each way to end that occurred."""
        counts: dict[str, int] = {}
        for attempt in self.attempts:
            counts[attempt.end] = counts.get(attempt.end, 0) + 1
        if self.unhandled:
            counts["unhandled"] = len(self.unhandled)
        if self.suspended:
            counts["suspended"] = len(self.suspended)
        return counts

    @property
    def completed(self) -> list[Attempt]:
        """Attempts that completed their job."""
        return self.of("completed")

    @property
    def failed(self) -> list[Attempt]:
        """Attempts that failed their job for good."""
        return self.of("failed")

    @property
    def retried(self) -> list[Attempt]:
        """Attempts that failed and are followed by another one."""
        return self.of("retried")

    def of(self, end: End | None = None, *, name: str | None = None) -> list[Attempt]:
        """Returns the attempts with this end, of jobs with this name, or both."""
        return [
            attempt
            for attempt in self.attempts
            if end in (None, attempt.end) and name in (None, attempt.name)
        ]

    def raise_failures(self) -> None:
        """Fails the test if a job failed.

        Raises:
            JobFailed: The first job that failed for good.
        """
        for attempt in self.failed:
            raise JobFailed(attempt.job_id, f"{attempt.name}: {attempt.reason}", None, attempt.category)

    def note(self, job: RunningJob, outcome: Outcome, code: Code, seconds: float) -> None:
        """Appends an ended attempt."""
        if job.handler is None:
            return  # the worker delayed the job without an attempt
        failed = outcome.kind in _FAILED and bool(outcome.value)
        self.attempts.append(
            Attempt(
                queue=job.queue,
                job_id=job.id,
                name=job.name,
                attempt=job.attempt,
                end=_end(outcome, code),
                value=payload.decode(outcome.value) if outcome.kind == OutcomeKind.COMPLETED else None,
                reason=outcome.value.decode("utf-8", "replace") if failed else None,
                category=outcome.category or None,
                delay_ms=outcome.delay_ms,
                seconds=seconds,
            )
        )


def _end(outcome: Outcome, code: Code) -> End:
    if code != ReplyCode.DONE:
        return "refused"
    if outcome.kind == OutcomeKind.FAILED:
        return "cancelled" if outcome.category == Category.CANCELLED.value else "failed"
    if outcome.kind == OutcomeKind.DELAY and not outcome.counts:
        return "snoozed"
    return _ENDS.get(outcome.kind, "given back")
