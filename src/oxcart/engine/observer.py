"""The seam between a worker and what watches it: metrics, traces, a user's own.

An observer is told what happens and never asked, and what it raises costs no job.

May touch: nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from oxcart.broker.port import Code, Outcome
from oxcart.engine.running import RunningJob

log = logging.getLogger("oxcart.worker")


class Observer(Protocol):
    """The seam for metrics and traces: told what happens, never asked."""

    def job_started(self, job: RunningJob) -> None:
        """A handler is about to run."""

    def job_ended(self, job: RunningJob, outcome: Outcome, code: Code, seconds: float) -> None:
        """An attempt ended; ``code`` says whether the server took it."""

    def called(self, queue: str, ended: int, claimed: int, seconds: float) -> None:
        """A call ended so many attempts and claimed so many jobs."""

    def scripted(self, verb: str, seconds: float) -> None:
        """A script was answered."""

    def renewed(self, queue: str, leases: int, seconds: float) -> None:
        """Leases were renewed."""

    def renewal_failed(self, queue: str, leases: int) -> None:
        """Leases could not be renewed."""

    def stalled(self, queue: str, job_ids: Sequence[str]) -> None:
        """Jobs were taken back from lost workers."""

    def check_skipped(self, queue: str) -> None:
        """A stalled check was skipped."""

    def reconnecting(self) -> None:
        """An attempt is made to reach a lost server."""

    def connection(self, up: bool) -> None:
        """The server can be reached, or not."""

    def workers(self, change: int) -> None:
        """A worker started (1) or ended (-1)."""


def careful(observer: Observer) -> Observer:
    """The same observer, whose errors are logged instead of raised."""
    return cast(Observer, _Careful(observer))


class _Careful:
    """An observer whose errors cost no job: the first of each kind is logged."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def __getattr__(self, name: str) -> Callable[..., None]:
        tell = getattr(self._observer, name)
        broken = False

        def told(*args: Any) -> None:
            nonlocal broken
            try:
                tell(*args)
            except Exception:
                if not broken:
                    broken = True
                    log.exception("the observer failed to take %r; said once", name)

        setattr(self, name, told)  # found without a search from now on
        return told
