"""The seam between a worker and its observers: metrics, traces, a user's own.

A worker calls its observers and ignores what they return; an exception of an observer costs no job.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, cast

from oxcart.broker.port import Code, Outcome
from oxcart.engine.running import RunningJob

log = logging.getLogger("oxcart.worker")


class Observer(Protocol):
    """Receives what happens in a worker, for metrics and error trackers.

    A class that inherits from this one implements only the methods that it wants. With a method
    ``async def around(job, call_next)`` it is also a layer around every handler, as middleware is.
    """

    def job_started(self, job: RunningJob) -> None:
        """A handler is about to run."""
        return

    def job_ended(self, job: RunningJob, outcome: Outcome, code: Code, seconds: float) -> None:
        """An attempt ended; ``code`` shows whether the server accepted the outcome."""
        return

    def called(self, queue: str, ended: int, claimed: int, seconds: float) -> None:
        """A call to the server ended so many attempts and claimed so many jobs."""
        return

    def scripted(self, verb: str, seconds: float) -> None:
        """A script was answered."""
        return

    def renewed(self, queue: str, leases: int, seconds: float) -> None:
        """Leases were renewed."""
        return

    def renewal_failed(self, queue: str, leases: int) -> None:
        """Leases could not be renewed."""
        return

    def stalled(self, queue: str, job_ids: Sequence[str]) -> None:
        """Stalled jobs were recovered."""
        return

    def check_skipped(self, queue: str) -> None:
        """A stalled check was skipped."""
        return

    def reconnecting(self) -> None:
        """An attempt is made to reach a lost server."""
        return

    def connection(self, up: bool) -> None:
        """The server can be reached, or not."""
        return

    def workers(self, change: int) -> None:
        """A worker started (1) or ended (-1)."""
        return


def careful(given: Observer | Sequence[Observer] | None) -> Observer | None:
    """Returns one observer for several, whose exceptions are logged instead of raised; None for none."""
    observers = _listed(given)
    return cast(Observer, _Careful(observers)) if observers else None


def layers_of(given: Observer | Sequence[Observer] | None) -> list[Callable[..., Awaitable[Any]]]:
    """Returns the layers around handlers that observers ask for, the outermost first."""
    return [getattr(one, "around") for one in _listed(given) if hasattr(type(one), "around")]  # noqa: B009


def _listed(given: Observer | Sequence[Observer] | None) -> list[Observer]:
    return [] if given is None else list(given) if isinstance(given, Sequence) else [given]


class _Careful:
    """Observers whose exceptions cost no job; the first of each method is logged."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def __getattr__(self, name: str) -> Callable[..., None]:
        ours = getattr(Observer, name)
        # An observer that inherits a method does not want it called.
        wanting = [one for one in self._observers if getattr(type(one), name, None) is not ours]
        calls = [_guarded(getattr(one, name), name) for one in wanting if hasattr(one, name)]

        def call(*args: Any) -> None:
            for one in calls:
                one(*args)

        only = calls[0] if len(calls) == 1 else call
        setattr(self, name, only)  # later calls find it without __getattr__
        return only


def _guarded(method: Callable[..., None], name: str) -> Callable[..., None]:
    broken = False

    def call(*args: Any) -> None:
        nonlocal broken
        try:
            method(*args)
        except Exception:
            if not broken:
                broken = True
                log.exception("the observer's method %s failed; further failures are not logged", name)

    return call
