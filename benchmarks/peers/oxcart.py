"""The measured process of Oxcart: `python -m benchmarks.peers.oxcart '<task as JSON>'`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from typing import Any

import oxcart
from benchmarks.peers import role
from oxcart.broker.port import Code, Outcome


class _Ends:
    """An observer that reports completed jobs only."""

    def __init__(self, count: role.Count) -> None:
        self._count = count

    def job_ended(self, job: oxcart.RunningJob, outcome: Outcome, code: Code, seconds: float) -> None:
        if code == 1 and outcome.kind == "c":
            self._count.one_since(job.data["t"])

    def __getattr__(self, name: str) -> Any:
        return lambda *args: None


async def no_op() -> None:
    """The handler that does nothing."""


def make_queue(name: str, port: int) -> oxcart.Queue:
    queue = oxcart.Queue(name, url=f"redis://127.0.0.1:{port}/0")
    queue.fallback(no_op)
    return queue


async def warm_queue(port: int, count: int) -> None:
    async with make_queue("warm", port) as queue:
        await queue.add_many([("warm", role.payload()) for _ in range(count)])
        for _ in range(count):
            await queue.add("warm", role.payload())


async def warm_worker(port: int, count: int, concurrency: int) -> None:
    await warm_queue(port, count // 2)
    worker = oxcart.Worker(make_queue("warm", port), concurrency=concurrency)
    running = asyncio.create_task(worker.run())
    await look(worker, running, count // 2 * 2)
    worker.stop()
    await running


async def look(
    worker: oxcart.Worker, running: asyncio.Task[None], jobs: int, count: role.Count | None = None
) -> None:
    """Reads the worker's own count now and then, which costs it less than a call per job."""
    while worker.processed < jobs:
        if running.done():
            await running
            raise SystemExit("the worker has ended")
        await asyncio.wait((running,), timeout=role.LOOK)
        if count is not None:
            count.seen(worker.processed)


def give_up(task: asyncio.Task[None]) -> None:
    """Ends the process with a task that failed."""
    if not task.cancelled() and (error := task.exception()) is not None:
        raise SystemExit(f"the worker has ended: {error!r}")


async def run(task: dict[str, Any]) -> None:
    name, jobs, warm = task["queue"], task["jobs"], task["warm"]
    queue = make_queue(name, task["port"])
    match task["role"]:
        case "fill":
            await role.ready(oxcart.__version__)
            await role.time_bulk(lambda: queue.add_many([("job", role.payload()) for _ in range(jobs)]), jobs)
        case "add_many":
            await warm_queue(task["warm_port"], warm)
            rows = [("job", role.payload()) for _ in range(jobs)]
            await queue.counts()
            await role.ready(oxcart.__version__)
            await role.time_bulk(lambda: queue.add_many(rows), jobs)
        case "add":
            await warm_queue(task["warm_port"], warm)
            data = role.payload()
            await queue.counts()
            await role.ready(oxcart.__version__)
            await role.time_adds(lambda: queue.add("job", data), jobs)
        case "pace":
            await warm_queue(task["warm_port"], warm)
            await queue.counts()
            await role.ready(oxcart.__version__)
            await role.pace_adds(
                lambda stamp: queue.add("job", role.payload(stamp=stamp)), jobs, task["pause"]
            )
        case "work":
            await warm_worker(task["warm_port"], warm, task["concurrency"])
            await role.ready(oxcart.__version__)
            count = role.Count(jobs)
            worker = oxcart.Worker(queue, concurrency=task["concurrency"])
            running = asyncio.create_task(worker.run())
            looking = asyncio.create_task(look(worker, running, jobs, count))
            looking.add_done_callback(give_up)
        case "wait":
            await warm_worker(task["warm_port"], warm, task["concurrency"])
            worker = oxcart.Worker(queue, concurrency=task["concurrency"], observer=_Ends(role.Count(jobs)))
            running = asyncio.create_task(worker.run())
            running.add_done_callback(give_up)
            await worker.started.wait()
            await asyncio.sleep(1)  # by then the renewer process has started
            await role.ready(oxcart.__version__)
        case other:
            raise SystemExit(f"no such role: {other}")
    await role.end()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(json.loads(sys.argv[1])))
