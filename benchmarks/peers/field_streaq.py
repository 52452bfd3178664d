"""The measured process of streaQ: `python field_streaq.py '<task as JSON>'`. Results are not kept."""

from __future__ import annotations

import contextlib
from importlib.metadata import version
from typing import Any

from streaq import Worker

import field

VERSION = version("streaq")

runs = field.Runs()


def worker_of(queue: str, concurrency: int = 100) -> tuple[Any, Any]:
    """Returns a worker, which also adds jobs, and its task."""
    worker: Any = Worker(
        redis_url=field.url(), queue_name=queue, concurrency=concurrency, prefetch=1000, handle_signals=False
    )

    @worker.task(ttl=0, silent=True)
    async def no_op(v: str) -> None:
        runs.mark()

    return worker, no_op


async def work(queue: str, concurrency: int) -> None:
    await worker_of(queue, concurrency)[0].run_async()


async def run(task: dict[str, Any]) -> None:
    async with contextlib.AsyncExitStack() as stack:
        made = {queue: worker_of(queue) for queue in (field.QUEUE, field.WARM)}
        for worker, _ in made.values():
            await stack.enter_async_context(worker)

        async def add(queue: str) -> None:
            await made[queue][1].enqueue(**field.PAYLOAD)

        async def add_many(queue: str, count: int) -> None:
            worker, no_op = made[queue]
            await worker.enqueue_many([no_op.enqueue(**field.PAYLOAD) for _ in range(count)])

        if task["role"] == "work":
            await field.work(task, VERSION, add_many, work, runs)
        else:
            await field.produce(task, VERSION, add, add_many)


if __name__ == "__main__":
    field.main(run)
