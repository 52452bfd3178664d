"""Ends attempts whose deadline has passed.

Nearly every job has the same far deadline, so one timer serves all of them. It is set to the nearest deadline
and moved only for a nearer one. Starting a job costs a comparison, not a timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from oxcart.engine.running import RunningJob


class Deadlines:
    """Watches the deadlines of running jobs.

    Args:
        running: The jobs that run now.
        expire: Called with each job whose deadline has passed.
    """

    def __init__(self, running: set[RunningJob], expire: Callable[[RunningJob], None]) -> None:
        self._running = running
        self._expire = expire
        self._nearest: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, deadline: float) -> None:
        """Watches for a deadline (loop time) of a job that has started."""
        if self._nearest is None or deadline < self._nearest:
            self._set(deadline)

    def close(self) -> None:
        """Stops watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._nearest = None

    def _set(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._nearest = deadline
        self._timer = asyncio.get_running_loop().call_at(deadline, self._look)

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        self._timer = self._nearest = None
        nearest: float | None = None
        due: list[tuple[float, RunningJob]] = []
        for job in self._running:
            if job.deadline is None:
                continue
            if job.deadline <= now:
                due.append((job.deadline, job))
            elif nearest is None or job.deadline < nearest:
                nearest = job.deadline
        for _, job in sorted(due, key=lambda one: one[0]):
            job.deadline = None
            self._expire(job)
        if nearest is not None:
            self._set(nearest)
