"""The measured process of Huey: `python field_huey.py '<task as JSON>'`; its consumer imports this, too."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from huey import RedisHuey

import field

VERSION = version("huey")
WORKER = [
    *("python", "-m", "huey.bin.huey_consumer", "field_huey.huey", "-q", "-n"),
    *("-k", "process", "-w", "4", "--disable-health-check"),
]

mark = field.marker()
huey = RedisHuey(field.QUEUE, url=field.url(), results=False)
other = RedisHuey(field.WARM, url=field.url(), results=False)


@huey.task()
def no_op(v: str) -> None:
    mark()


@other.task()
def warm(v: str) -> None:
    pass


async def add(queue: str) -> None:
    (no_op if queue == field.QUEUE else warm)(**field.PAYLOAD)


async def add_many(queue: str, count: int) -> None:
    for _ in range(count):
        await add(queue)


async def run(task: dict[str, Any]) -> None:
    if task["role"] == "work":
        await field.serve(task, VERSION, add_many, WORKER)
    else:
        await field.produce(task, VERSION, add, add_many)


if __name__ == "__main__":
    import field_huey  # a task is known by the name of its module

    field.main(field_huey.run)
