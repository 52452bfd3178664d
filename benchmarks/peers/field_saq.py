"""The measured process of SAQ: `python field_saq.py '<task as JSON>'`. Finished jobs are not kept."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any

from saq import Queue, Worker

import field

VERSION = version("saq")
#: With the 100 of the others it is slower: each waiting slot is a connection that blocks.
CONCURRENCY = 20

runs = field.Runs()
_queues: dict[str, Any] = {}


async def no_op(ctx: Any, *, v: str) -> None:
    runs.mark()


def queue_of(name: str) -> Any:
    if name not in _queues:
        _queues[name] = Queue.from_url(field.url(), name=name, max_concurrent_ops=100)
    return _queues[name]


async def add(queue: str) -> None:
    await queue_of(queue).enqueue("no_op", ttl=-1, **field.PAYLOAD)


async def add_many(queue: str, count: int) -> None:
    # What its own `map` does, without waiting for the results.
    await asyncio.gather(*(add(queue) for _ in range(count)))


async def work(queue: str, concurrency: int) -> None:
    await Worker(queue_of(queue), [no_op], concurrency=CONCURRENCY).start()


async def run(task: dict[str, Any]) -> None:
    if task["role"] == "work":
        await field.work(task, VERSION, add_many, work, runs)
    else:
        await field.produce(task, VERSION, add, add_many)


if __name__ == "__main__":
    field.main(run)
