"""The measured process of Dramatiq, which its workers import: `python field_dramatiq.py '<task as JSON>'`."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

import field

VERSION = version("dramatiq")
WORKER = [
    *("dramatiq", "--processes", "2", "--threads", "8", "--skip-logging"),
    *("--queues", field.QUEUE, "--", "field_dramatiq"),
]

mark = field.marker()
broker = RedisBroker(url=field.url(), middleware=[])
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name=field.QUEUE)
def no_op(v: str) -> None:
    mark()


@dramatiq.actor(queue_name=field.WARM)
def warm(v: str) -> None:
    pass


async def add(queue: str) -> None:
    (no_op if queue == field.QUEUE else warm).send(**field.PAYLOAD)


async def add_many(queue: str, count: int) -> None:
    for _ in range(count):
        await add(queue)


async def run(task: dict[str, Any]) -> None:
    if task["role"] == "work":
        await field.serve(task, VERSION, add_many, WORKER)
    else:
        await field.produce(task, VERSION, add, add_many)


if __name__ == "__main__":
    field.main(run)
