"""The seam between a worker and its observers: metrics, traces, a user's own.

A worker calls its observer and ignores what it returns; an exception of the observer costs no job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from oxcart.broker.port import Code, Outcome
from oxcart.engine.running import RunningJob

log = logging.getLogger("oxcart.worker")


class Observer(Protocol):
    """Receives what happens in a worker, for metrics and traces."""

    def job_started(self, job: RunningJob) -> None:
        """A handler is about to run."""

    def job_ended(self, job: RunningJob, outcome: Outcome, code: Code, seconds: float) -> None:
        """An attempt ended; ``code`` shows whether the server accepted the outcome."""

    def called(self, queue: str, ended: int, claimed: int, seconds: float) -> None:
        """A call to the server ended so many attempts and claimed so many jobs."""

    def scripted(self, verb: str, seconds: float) -> None:
        """A script was answered."""

    def renewed(self, queue: str, leases: int, seconds: float) -> None:
        """Leases were renewed."""

    def renewal_failed(self, queue: str, leases: int) -> None:
        """Leases could not be renewed."""

    def stalled(self, queue: str, job_ids: Sequence[str]) -> None:
        """Stalled jobs were recovered."""

    def check_skipped(self, queue: str) -> None:
        """A stalled check was skipped."""

    def reconnecting(self) -> None:
        """An attempt is made to reach a lost server."""

    def connection(self, up: bool) -> None:
        """The server can be reached, or not."""

    def workers(self, change: int) -> None:
        """A worker started (1) or ended (-1)."""


def careful(observer: Observer) -> Observer:
    """Returns the same observer with exceptions that are logged instead of raised."""
    return cast(Observer, _Careful(observer))


class _Careful:
    """An observer whose exceptions cost no job; the first of each method is logged."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def __getattr__(self, name: str) -> Callable[..., None]:
        method = getattr(self._observer, name)
        broken = False

        def call(*args: Any) -> None:
            nonlocal broken
            try:
                method(*args)
            except Exception:
                if not broken:
                    broken = True
                    log.exception("the observer's method %s failed; further failures are not logged", name)

        setattr(self, name, call)  # later calls find it without __getattr__
        return call
