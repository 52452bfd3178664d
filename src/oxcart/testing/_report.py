"""What has run, attempt by attempt."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from oxcart.broker.port import Code, Outcome
from oxcart.engine.running import RunningJob
from oxcart.model import payload
from oxcart.model.errors import JobFailed
from oxcart.model.failure import Category
from oxcart.model.job import Job

End = Literal["completed", "failed", "cancelled", "retried", "snoozed", "given back", "waiting", "refused"]


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt that ended.

    Attributes:
        queue: The queue.
        job_id: The job.
        name: Its name.
        attempt: The number of the attempt, from 1.
        end: How it ended; ``refused`` when the job was no longer the worker's to end.
        value: The result of a completed job.
        reason: Why it failed or is tried again.
        category: The category of a failure for good.
        delay_ms: How long the job was told to wait before its next attempt.
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
    """What has run, attempt by attempt.

    Attributes:
        attempts: Every attempt, in the order in which they ended.
        unhandled: Jobs that nobody ran, because their names have no handler.
    """

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.unhandled: list[Job] = []

    def __repr__(self) -> str:
        return f"Report({self.counts})"

    @property
    def counts(self) -> dict[str, int]:
        """How many attempts ended in each way; ways that did not occur are left out."""
        counts: dict[str, int] = {}
        for attempt in self.attempts:
            counts[attempt.end] = counts.get(attempt.end, 0) + 1
        if self.unhandled:
            counts["unhandled"] = len(self.unhandled)
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
        """Attempts that failed but left others."""
        return self.of("retried")

    def of(self, end: End | None = None, *, name: str | None = None) -> list[Attempt]:
        """Attempts that ended so, or of jobs of that name, or both."""
        return [
            attempt
            for attempt in self.attempts
            if end in (None, attempt.end) and name in (None, attempt.name)
        ]

    def raise_failures(self) -> None:
        """Makes a failed job the test's failure.

        Raises:
            JobFailed: The first job that failed for good.
        """
        for attempt in self.failed:
            raise JobFailed(attempt.job_id, f"{attempt.name}: {attempt.reason}", None, attempt.category)

    def note(self, job: RunningJob, outcome: Outcome, code: Code, seconds: float) -> None:
        """Writes down an ended attempt."""
        if job.handler is None:
            return  # it was put off, not tried
        failed = outcome.kind in "frd" and bool(outcome.value)
        self.attempts.append(
            Attempt(
                queue=job.queue,
                job_id=job.id,
                name=job.name,
                attempt=job.attempt,
                end=_end(outcome, code),
                value=payload.decode(outcome.value) if outcome.kind == "c" else None,
                reason=outcome.value.decode("utf-8", "replace") if failed else None,
                category=outcome.category or None,
                delay_ms=outcome.delay_ms,
                seconds=seconds,
            )
        )


def _end(outcome: Outcome, code: Code) -> End:
    if code != 1:
        return "refused"
    if outcome.kind == "f":
        return "cancelled" if outcome.category == Category.CANCELLED.value else "failed"
    if outcome.kind == "d" and not outcome.counts:
        return "snoozed"
    ends: dict[str, End] = {"c": "completed", "r": "retried", "d": "retried", "h": "waiting"}
    return ends.get(outcome.kind, "given back")
