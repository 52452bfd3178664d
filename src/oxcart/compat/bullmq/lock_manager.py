"""The jobs that a worker has leased, and the signals that ask their processors to stop.

Our engine renews the locks of jobs that a worker runs, in a separate process. Jobs that a program takes
itself (``track_job``, for jobs of ``Worker.getNextJob``) are renewed here.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from oxcart.broker.port import Lease
from oxcart.compat.bullmq.abort_controller import AbortController
from oxcart.compat.bullmq.store import store_of

if TYPE_CHECKING:
    from oxcart.engine.running import RunningJob


class _Tracked:
    __slots__ = ("by_hand", "controller", "token", "ts")

    def __init__(self, token: str, ts: int, controller: AbortController | None, by_hand: bool) -> None:
        self.token = token
        self.ts = ts
        self.controller = controller
        self.by_hand = by_hand


class LockManager:
    """The leased jobs of a worker.

    Args:
        worker: The worker; it emits the events of renewals.
        lock_renew_time: Locks are renewed twice in so many ms.
        lock_duration: For how many ms they are renewed.
        worker_id: The worker's id.
        worker_name: Its name.
    """

    def __init__(
        self,
        worker: Any,
        lock_renew_time: int,
        lock_duration: int,
        worker_id: str,
        worker_name: str | None = None,
    ) -> None:
        self.worker = worker
        self.lock_renew_time = lock_renew_time
        self.lock_duration = lock_duration
        self.worker_id = worker_id
        self.worker_name = worker_name
        self.closed = False
        self._tracked: dict[str, _Tracked] = {}
        self._renewing: asyncio.Task[None] | None = None

    @property
    def tracked_jobs(self) -> dict[str, dict[str, Any]]:
        """The data of every leased job."""
        return {
            job_id: {"token": one.token, "ts": one.ts, "abort_controller": one.controller}
            for job_id, one in self._tracked.items()
        }

    def start(self) -> None:
        """Starts renewing the jobs of ``track_job``."""
        if not self.closed and self._renewing is None and self.lock_renew_time > 0:
            self._renewing = asyncio.ensure_future(self._renew())

    def track_job(
        self, job_id: str, token: str, ts: int, should_create_controller: bool = False
    ) -> AbortController | None:
        """Renews a job's lock from now on; returns the controller that stops its processor, if requested."""
        if self.closed or not job_id:
            return None
        controller = AbortController() if should_create_controller else None
        self._tracked[job_id] = _Tracked(token, ts, controller, True)
        return controller

    def hold(self, running: RunningJob, wants_signal: bool) -> AbortController | None:
        """Registers a job that our engine runs and renews."""
        controller = None
        if wants_signal:
            controller = AbortController()
            controller.signal._running = running
        self._tracked[running.id] = _Tracked(running.token, running.started_ms, controller, False)
        return controller

    def untrack_job(self, job_id: str) -> None:
        """Forgets a job."""
        self._tracked.pop(job_id, None)

    def cancel_job(self, job_id: str, reason: str | None = None) -> bool:
        """Asks a job's processor to stop; returns False if it takes no signal."""
        tracked = self._tracked.get(job_id)
        if tracked is None or tracked.controller is None:
            return False
        tracked.controller.abort(reason)
        return True

    def cancel_all_jobs(self, reason: str | None = None) -> None:
        """Asks all processors to stop that take a signal."""
        for job_id in list(self._tracked):
            self.cancel_job(job_id, reason)

    def get_active_job_count(self) -> int:
        """Returns how many jobs are leased."""
        return len(self._tracked)

    def get_tracked_job_ids(self) -> list[str]:
        """Returns the ids of leased jobs."""
        return list(self._tracked)

    def is_running(self) -> bool:
        """Returns whether locks are renewed."""
        return not self.closed and self._renewing is not None

    async def close(self) -> None:
        """Ends the renewal, and drops all jobs."""
        self.closed = True
        task, self._renewing = self._renewing, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tracked.clear()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self.lock_renew_time / 2000)
            await self.extend(only_by_hand=True)

    async def extend(self, *, only_by_hand: bool = False) -> None:
        """Renews the locks of all leased jobs now."""
        leases = [
            Lease(job_id, one.token)
            for job_id, one in self._tracked.items()
            if one.by_hand or not only_by_hand
        ]
        if not leases:
            return
        try:
            refused = await store_of(self.worker).renew(leases, self.lock_duration)
        except Exception as error:
            self.worker._emit_safely("error", error)
            return
        self.emit_failed(refused)
        lost = set(refused)
        renewed = [lease.id for lease in leases if lease.id not in lost]
        if renewed:
            self.worker._emit_safely("locksRenewed", {"count": len(renewed), "jobIds": renewed})

    def emit_failed(self, job_ids: list[str]) -> None:
        """Emits the events of locks that could not be renewed."""
        if job_ids:
            self.worker._emit_safely("lockRenewalFailed", job_ids)
            for job_id in job_ids:
                self.worker._emit_safely("error", Exception(f"could not renew lock for job {job_id}"))
