"""Stopping running jobs: signals, forced closes, and the lock manager."""

from __future__ import annotations

import asyncio
from typing import Any

from seen import Ends, until


async def main(bullmq: Any, connection: Any) -> Any:
    queue = bullmq.Queue("cancelling", {"connection": connection})
    found: dict[str, Any] = {}
    started: list[str] = []

    async def process(job: Any, token: str, signal: Any) -> Any:
        started.append(job.id)
        before = [signal.aborted, signal.reason]
        await signal.wait()
        if job.name == "returns":
            return [before, signal.aborted, signal.reason]
        signal.throw_if_aborted()

    worker = bullmq.Worker("cancelling", process, {"connection": connection, "concurrency": 5})
    ends = Ends(worker)
    one, two, three = [await queue.add(name, {}) for name in ("returns", "raises", "third")]
    await until(lambda: len(started) == 3)
    manager = worker.lockManager
    found["held"] = [manager.get_active_job_count(), sorted(manager.get_tracked_job_ids())]
    await worker.extendLocks()
    found["cancelled"] = [worker.cancelJob(one.id, "enough"), worker.cancelJob("nobody")]
    await ends.wait(1)
    worker.cancelAllJobs("all of you")
    found["told"] = await ends.wait(3)
    found["states"] = [await queue.getJobState(job.id) for job in (one, two, three)]

    held = await queue.add("returns", {})
    await until(lambda: held.id in started)
    await worker.close(force=True)
    found["closed"] = [worker.closed, worker.forceClosing, worker.closing]

    async def endless(job: Any, token: str) -> None:
        started.append(f"endless {job.id}")
        await asyncio.sleep(3600)

    other = bullmq.Worker("endless", endless, {"connection": connection})
    endless_queue = bullmq.Queue("endless", {"connection": connection})
    job = await endless_queue.add("e", {})
    await until(lambda: f"endless {job.id}" in started)
    other.cancelProcessing()
    await until(lambda: not other.lockManager.get_tracked_job_ids())
    await other.close(force=True)

    controller = bullmq.AbortController()
    signal = controller.signal
    found["signal"] = [signal.aborted, signal.reason]
    waiting = asyncio.ensure_future(signal.wait())
    signal.throw_if_aborted()
    controller.abort("why")
    controller.abort("too late")
    await waiting
    found["given"] = [signal.aborted, signal.reason]
    try:
        signal.throw_if_aborted()
    except bullmq.AbortError as error:
        found["raised"] = [str(error), error.reason]
    found["no reason"] = str(bullmq.AbortError())

    manager = bullmq.LockManager(worker, 0, 30000, "id", "name")
    manager.start()
    found["manager"] = [
        manager.is_running(),
        manager.track_job("a", "t", 1) is None,
        manager.track_job("b", "t", 1, should_create_controller=True) is None,
        manager.cancel_job("a"),
        manager.cancel_job("b", "so"),
        manager.tracked_jobs["b"]["abort_controller"].signal.reason,
        manager.get_active_job_count(),
    ]
    manager.cancel_all_jobs("all")
    manager.untrack_job("a")
    found["untracked"] = manager.get_tracked_job_ids()
    await manager.close()
    found["ended"] = [manager.closed, manager.is_running(), manager.track_job("c", "t", 1)]
    await endless_queue.close()
    await queue.close()
    return found
