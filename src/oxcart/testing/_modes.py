"""Queues without a server: jobs run as they are added, or when the test drains the queue."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from oxcart import sync
from oxcart.engine.executor import Middleware
from oxcart.model.backoff import Strategy
from oxcart.model.duration import Duration, parse_ms
from oxcart.model.errors import ValidationError
from oxcart.model.failure import Classifier
from oxcart.model.options import DEFAULT_TIMEOUT
from oxcart.testing._attempt import Settings, run_here
from oxcart.testing._driver import Mode
from oxcart.testing._queues import AnyQueue, unwrap
from oxcart.testing._report import Report


@contextlib.contextmanager
def inline(
    *queues: AnyQueue,
    propagate: bool = False,
    state: Any = None,
    middleware: Sequence[Middleware] = (),
    timeout: Duration | None = DEFAULT_TIMEOUT / 1000,
    classifier: Classifier | None = None,
    strategies: Mapping[str, Strategy] | None = None,
) -> Iterator[Report]:
    """Runs jobs of these queues as they are added, within the block and without a server.

    The block yields a report that grows. A job whose name has no handler stays ``delayed``.

    Args:
        *queues: The queues.
        propagate: Whether the add of a job that fails for good raises the handler's exception.
        state: The value of ``job.state`` in handlers.
        middleware: As for ``Worker``.
        timeout: As for ``Worker``.
        classifier: As for ``Worker``.
        strategies: As for ``Worker``.

    Raises:
        EndlessJobs: A job snoozes, or jobs enqueue each other, without end.
    """
    settings = Settings(
        state=state,
        middleware=middleware,
        timeout=_seconds(timeout),
        classifier=classifier,
        strategies=strategies,
        propagate=propagate,
    )
    with _standing_in(queues, settings, at_once=True) as report:
        yield report


@contextlib.contextmanager
def manual(
    *queues: AnyQueue,
    state: Any = None,
    middleware: Sequence[Middleware] = (),
    timeout: Duration | None = DEFAULT_TIMEOUT / 1000,
    classifier: Classifier | None = None,
    strategies: Mapping[str, Strategy] | None = None,
) -> Iterator[Report]:
    """Keeps jobs of these queues in memory until the test drains them, within the block and without a server.

    Args:
        *queues: The queues.
        state: The value of ``job.state`` in handlers.
        middleware: As for ``Worker``.
        timeout: As for ``Worker``.
        classifier: As for ``Worker``.
        strategies: As for ``Worker``.
    """
    settings = Settings(
        state=state,
        middleware=middleware,
        timeout=_seconds(timeout),
        classifier=classifier,
        strategies=strategies,
    )
    with _standing_in(queues, settings, at_once=False) as report:
        yield report


@contextlib.contextmanager
def _standing_in(queues: Sequence[AnyQueue], settings: Settings, *, at_once: bool) -> Iterator[Report]:
    if not queues:
        raise ValidationError("queues", "at least one queue", ())
    report = Report()
    with contextlib.ExitStack() as stack:
        for queue in queues:
            inner = unwrap(queue)
            stack.enter_context(inner._core.using(Mode(inner, settings, at_once, report.note)))
            if isinstance(queue, sync.Queue):
                stack.enter_context(queue._running_with(run_here))
        yield report


def _seconds(timeout: Duration | None) -> float | None:
    return None if timeout is None else parse_ms(timeout, "timeout", minimum=1) / 1000
