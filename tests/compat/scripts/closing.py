"""A worker closed by force, like PyPI's package: its jobs stall."""

from __future__ import annotations

import asyncio
from typing import Any

from seen import until


async def main(bullmq: Any, connection: Any) -> Any:
    queue = bullmq.Queue("closing", {"connection": connection})
    found: dict[str, Any] = {}
    started: list[str] = []

    async def hang(job: Any, token: str) -> None:
        started.append(job.id)
        await asyncio.sleep(60)

    # The option is ours; their package always closes this way.
    options = {"connection": connection, "concurrency": 2, "lockDuration": 1000, "stallOnForceClose": True}
    worker = bullmq.Worker("closing", hang, options)
    jobs = [await queue.add("work", {"n": number}) for number in range(3)]
    await until(lambda: len(started) == 2)
    found["while it runs"] = [len(worker.processing), worker.clientName[:5], len(worker.jobs)]
    await worker.close(True)
    found["closed"] = [worker.closed, worker.forceClosing]
    found["states"] = [await job.getState() for job in jobs]
    found["locks"] = [await queue.client.exists(queue.toKey(f"{job.id}:lock")) for job in jobs]
    found["held"] = [
        [one.attemptsMade, one.attemptsStarted, one.stalledCounter]
        for one in [await queue.getJob(job.id) for job in jobs]
    ]

    ended: list[str] = []
    stalled: list[str] = []

    async def work(job: Any, token: str) -> None:
        ended.append(job.id)

    second = bullmq.Worker("closing", work, {"connection": connection, "stalledInterval": 500})
    second.on("stalled", stalled.append)
    await until(lambda: len(ended) == 3)
    await until(lambda: _counts(queue))
    found["then"] = [sorted(ended), sorted(stalled)]
    found["ended"] = [
        [one.attemptsMade, one.attemptsStarted, one.stalledCounter]
        for one in [await queue.getJob(job.id) for job in jobs]
    ]
    await second.close()
    await queue.close()
    return found


async def _counts(queue: Any) -> bool:
    return bool(await queue.getCompletedCount() == 3)
