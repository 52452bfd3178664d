"""The measured process of arq: `python field_arq.py '<task as JSON>'`. Results are not kept."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

import field

VERSION = version("arq")
#: How many adds are under way at once where many are added: arq has no call for that.
TOGETHER = 100
#: Seconds between two looks at the queue. The default, half a second, would be the limit.
POLL = 0.001

runs = field.Runs()
_pools: list[Any] = []


async def no_op(ctx: Any, v: str) -> None:
    runs.mark()


async def pool() -> Any:
    if not _pools:
        _pools.append(await create_pool(RedisSettings(port=field.port())))
    return _pools[0]


async def add(queue: str) -> None:
    await (await pool()).enqueue_job("no_op", _queue_name=queue, **field.PAYLOAD)


async def add_many(queue: str, count: int) -> None:
    await pool()
    left = iter(range(count))

    async def some() -> None:
        for _ in left:
            await add(queue)

    await asyncio.gather(*(some() for _ in range(TOGETHER)))


async def work(queue: str, concurrency: int) -> None:
    worker = Worker(
        [no_op],
        queue_name=queue,
        redis_settings=RedisSettings(port=field.port()),
        max_jobs=concurrency,
        queue_read_limit=concurrency,
        poll_delay=POLL,
        keep_result=0,
        log_results=False,
        handle_signals=False,
    )
    await worker.async_run()


async def run(task: dict[str, Any]) -> None:
    if task["role"] == "work":
        await field.work(task, VERSION, add_many, work, runs)
    else:
        await field.produce(task, VERSION, add, add_many)


if __name__ == "__main__":
    field.main(run)
