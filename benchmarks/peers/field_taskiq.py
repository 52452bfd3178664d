"""The measured process of taskiq: `python field_taskiq.py list|stream '<task as JSON>'`.

`list` is its fastest broker, which drops a job as soon as a worker has taken it; `stream` acknowledges jobs.
Neither keeps results.
"""

from __future__ import annotations

import asyncio
import sys
from importlib.metadata import version
from typing import Any

from taskiq.api import run_receiver_task
from taskiq_redis import ListQueueBroker, RedisStreamBroker

import field

VERSION = version("taskiq")
#: How many adds are under way at once where many are added: taskiq has no call for that.
TOGETHER = 100

runs = field.Runs()
_made: dict[str, tuple[Any, Any]] = {}


async def made(queue: str) -> tuple[Any, Any]:
    """The broker of a queue and its task."""
    if queue not in _made:
        if sys.argv[1] == "list":
            broker: Any = ListQueueBroker(field.url(), queue_name=queue)
        else:
            broker = RedisStreamBroker(
                field.url(), queue_name=queue, consumer_group_name=queue, consumer_id="0"
            )

        async def no_op(v: str) -> None:
            runs.mark()

        _made[queue] = broker, broker.register_task(no_op, "no_op")
        await broker.startup()
    return _made[queue]


async def add(queue: str) -> None:
    _, task = await made(queue)
    await task.kiq(**field.PAYLOAD)


async def add_many(queue: str, count: int) -> None:
    _, task = await made(queue)
    left = iter(range(count))

    async def some() -> None:
        for _ in left:
            await task.kiq(**field.PAYLOAD)

    await asyncio.gather(*(some() for _ in range(TOGETHER)))


async def work(queue: str, concurrency: int) -> None:
    broker, _ = await made(queue)
    await run_receiver_task(
        broker, max_async_tasks=concurrency, max_prefetch=concurrency, validate_params=False
    )


async def run(task: dict[str, Any]) -> None:
    if task["role"] == "work":
        await field.work(task, VERSION, add_many, work, runs)
    else:
        await field.produce(task, VERSION, add, add_many)


if __name__ == "__main__":
    field.main(run)
