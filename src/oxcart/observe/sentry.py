"""Reports failures to Sentry: ``Worker(emails, observer=SentryHook())``.

Each handler runs in a scope of its own: tags, breadcrumbs and the user that it sets reach the event of its
attempt and no other. The lines of ``job.log`` are breadcrumbs. Payloads are not sent.
Needs ``pip install 'oxcart[sentry]'`` and a call of ``sentry_sdk.init``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from oxcart.engine.running import RunningJob
from oxcart.model.errors import MissingExtra
from oxcart.observe.errors import Each, Failure, FailureHook

try:
    import sentry_sdk
    from sentry_sdk.scope import Scope, use_isolation_scope
    from sentry_sdk.utils import event_from_exception
except ImportError as error:
    raise MissingExtra("reports to Sentry", "sentry") from error


class SentryHook(FailureHook):
    """An observer that sends failures to Sentry.

    Args:
        each: ``"final"``: one event per job that is not tried again. ``"attempt"``: one per failed attempt;
            an attempt that is retried has the level ``warning``.

    Raises:
        MissingExtra: The package ``sentry-sdk`` is not installed.
        ValidationError: ``each`` is neither.
    """

    def __init__(self, *, each: Each = "final") -> None:
        super().__init__(self._send, each=each)

    async def around(self, job: RunningJob, call_next: Callable[[RunningJob], Awaitable[Any]]) -> Any:
        """Runs a handler in a scope of its own."""
        with sentry_sdk.isolation_scope() as scope:
            scope.clear_breadcrumbs()  # those of the worker's own lines
            for name, value in _tags(job).items():
                scope.set_tag(name, value)
            scope.set_transaction_name(f"{job.queue}/{job.name}", source="task")
            job.on_log = _Breadcrumbs(scope)
            return await call_next(job)

    def _send(self, failure: Failure) -> None:
        job, level = failure.job, "error" if failure.is_final else "warning"
        crumbs = getattr(job, "on_log", None)
        # A job that failed before its handler began has no scope yet.
        scope = crumbs.scope if isinstance(crumbs, _Breadcrumbs) else Scope()
        with use_isolation_scope(scope), sentry_sdk.new_scope() as own:
            for name, value in _tags(job).items():
                own.set_tag(name, value)
            own.set_tag("oxcart.category", failure.category)
            own.set_context("oxcart", _context(failure))
            if failure.error is None:
                event: dict[str, Any] = {"message": failure.reason, "logger": "oxcart.worker"}
                hint: dict[str, Any] = {}
            else:
                made, hint = event_from_exception(
                    failure.error,
                    client_options=sentry_sdk.get_client().options,
                    mechanism={"type": "oxcart", "handled": False},
                )
                event = dict(made)
            event["level"] = level
            sentry_sdk.capture_event(event, hint)  # type: ignore[arg-type]  # an event is a dict


class _Breadcrumbs:
    """Receives the lines of a job's log."""

    __slots__ = ("scope",)

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def __call__(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.scope.add_breadcrumb(category="job.log", message=line, level="info")


def _tags(job: RunningJob) -> dict[str, str]:
    tags = {
        "oxcart.queue": job.queue,
        "oxcart.job": job.name,
        "oxcart.job_id": job.id,
        "oxcart.attempt": str(job.attempt),
        "oxcart.worker": job.worker_id,
    }
    if (correlation := job.correlation_id) is not None:
        tags["oxcart.correlation_id"] = correlation
    return tags


def _context(failure: Failure) -> dict[str, Any]:
    job = failure.job
    return {
        "code": failure.code,
        "category": failure.category,
        "final": failure.is_final,
        "attempts": max(job.options.attempts, 1),
        "retry_in": failure.retry_in,
        "seconds": round(failure.seconds, 3),
        "tags": job.tags,
    }
