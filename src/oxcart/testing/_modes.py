"""Queues without a server: jobs run as they are added, or when they are drained.

May touch: nothing outside of the process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from oxcart import sync
from oxcart.engine.executor import Middleware
from oxcart.model.backoff import Strategy
from oxcart.model.duration import Duration, parse_ms
from oxcart.model.errors import OxcartError, ValidationError
from oxcart.model.failure import Classifier
from oxcart.model.options import DEFAULT_TIMEOUT
from oxcart.testing._attempt import Settings, run_here
from oxcart.testing._memory import MemoryBroker, StandIn
from oxcart.testing._queues import AnyQueue, unwrap
from oxcart.testing._report import Report

T = TypeVar("T")


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
    """Within the block, jobs of these queues run as they are added; no server is used.

    The block yields a report that grows. A job whose name has no handler stays, as ``delayed``.

    Args:
        *queues: The queues.
        propagate: Whether the exception of a job that fails for good is raised where it was added.
        state: What handlers see as ``job.state``.
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
    """Within the block, jobs of these queues are kept in memory until they are drained; no server is used.

    Args:
        *queues: The queues.
        state: What handlers see as ``job.state``.
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
            broker = MemoryBroker(inner.name, inner.registry, settings, at_once, report.note, inner.sealer)
            stand_in = StandIn(broker)
            stack.enter_context(_replaced(inner, "_bind", _constant(stand_in)))
            stack.enter_context(_replaced(inner, "open_broker", _no_server(inner.name)))
            if isinstance(queue, sync.Queue):
                stack.enter_context(_replaced(queue, "run", run_here))
        yield report


@contextlib.contextmanager
def _replaced(thing: object, name: str, value: Any) -> Iterator[None]:
    """Shadows a method of one object."""
    own = vars(thing)
    before = own.get(name)
    own[name] = value
    try:
        yield
    finally:
        if before is None:
            del own[name]
        else:
            own[name] = before


def _constant(value: T) -> Callable[[], T]:
    return lambda: value


def _no_server(name: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise OxcartError(f"queue {name!r} is inline or manual: it has no server, so no events and no worker")

    return refuse


def _seconds(timeout: Duration | None) -> float | None:
    return None if timeout is None else parse_ms(timeout, "timeout", minimum=1) / 1000
