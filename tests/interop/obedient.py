"""A worker that obeys the instructions in a job's data, like the driver's Node workers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from oxcart import PermanentError, Queue, RunningJob, Worker

LIMIT = 30.0


class Obedient:
    """A handler that does what the data of its job says.

    The data of a job: ``fail: n`` throws in the first n attempts, ``message`` with that text;
    ``unrecoverable`` fails for good; ``delay`` is ms of work; ``progress`` and ``log`` are reported;
    ``result`` is returned, or with ``children`` the values of the children, sorted.

    Attributes:
        runs: Id and ended attempts of every start.
        failed: Ids of the starts that ended in an exception.
    """

    def __init__(self) -> None:
        self.runs: list[tuple[str, int]] = []
        self.failed: list[str] = []

    async def __call__(self, job: RunningJob) -> Any:
        self.runs.append((job.id, job.attempts_made))
        data = job.data if isinstance(job.data, dict) else {}
        if "progress" in data:
            await job.update_progress(data["progress"])
        rows = data.get("log", [])
        for row in [rows] if isinstance(rows, str) else rows:
            await job.log(row)
        if data.get("delay"):
            await asyncio.sleep(data["delay"] / 1000)
        if data.get("unrecoverable"):
            self.failed.append(job.id)
            raise PermanentError(data.get("message", "for good"))
        if job.attempts_made < data.get("fail", 0):
            self.failed.append(job.id)
            raise RuntimeError(data.get("message", f"attempt {job.attempts_made + 1} failed"))
        if data.get("children"):
            return sorted((await job.children_values()).values())
        return data.get("result")


@contextlib.asynccontextmanager
async def obeying(queue: Queue, **options: Any) -> AsyncIterator[Obedient]:
    """Run a worker of ours on the queue for the block."""
    handler = Obedient()
    queue.fallback(handler)
    async with Worker(queue, **options).running():
        yield handler
