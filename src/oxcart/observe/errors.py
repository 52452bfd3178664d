"""The hook for error trackers: every failed attempt, or every final failure, with its exception.

    def report(failure: Failure) -> None:
        tracker.notify(failure.error, **failure.fields)

    Worker(emails, observer=[FailureHook(report, each="final")])

``oxcart.observe.sentry`` is such a hook for Sentry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from oxcart.broker.port import Code, Outcome, OutcomeKind
from oxcart.engine.observer import Observer
from oxcart.engine.running import RunningJob
from oxcart.model.errors import ReplyCode, ValidationError
from oxcart.model.failure import Category

#: When to report: every failed attempt, or only failures after which the job is not tried again.
Each = Literal["attempt", "final"]


class Failure(msgspec.Struct, frozen=True):
    """A failed attempt whose end the server has accepted.

    Attributes:
        job: The job as its handler had it: id, queue, name, attempt, data, tags.
        error: The exception; None if there is none, as for a handler that returned ``Retry``. An exception
            of a handler's process has the traceback of that process as its cause.
        reason: The failure in a line, as it is stored.
        category: ``temporary``, ``permanent``, ``timeout`` or ``system``.
        code: The application's own word for the failure, else the class of the error.
        is_final: Whether the job is not tried again.
        retry_in: Seconds until the next attempt; None if it is final.
        seconds: How long the attempt took.
    """

    job: RunningJob
    error: BaseException | None
    reason: str
    category: str
    code: str
    is_final: bool
    retry_in: float | None
    seconds: float

    @property
    def fields(self) -> dict[str, Any]:
        """Queue, job, name, attempt, worker, correlation id and trace, as in log lines, and the category."""
        return {**self.job.log_fields(), "category": self.category, "final": self.is_final}


class FailureHook(Observer):
    """Reports failed attempts to a function. A cancelled job is no failure.

    A job that a stalled check ends after the loss of its worker had no attempt that could be reported.

    Args:
        report: Receives each failure, in the worker's event loop: it must not block. An exception of it is
            logged and costs no job.
        each: ``"attempt"`` or ``"final"``.

    Raises:
        ValidationError: ``each`` is neither.
    """

    def __init__(self, report: Callable[[Failure], object], *, each: Each = "attempt") -> None:
        if each not in ("attempt", "final"):
            raise ValidationError("each", "'attempt' or 'final'", each)
        self._report = report
        self._each = each

    def job_ended(self, job: RunningJob, outcome: Outcome, code: Code, seconds: float) -> None:
        """An attempt ended."""
        if not outcome.category or outcome.category == Category.CANCELLED.value or code != ReplyCode.DONE:
            return
        is_final = outcome.kind == OutcomeKind.FAILED
        if not is_final and self._each == "final":
            return
        self._report(
            Failure(
                job,
                outcome.error,
                outcome.value.decode("utf-8", "replace"),
                outcome.category,
                outcome.code,
                is_final,
                None if is_final else outcome.delay_ms / 1000,
                seconds,
            )
        )
