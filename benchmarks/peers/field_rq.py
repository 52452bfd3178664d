"""The measured process of RQ: `python field_rq.py '<task as JSON>'`; its workers import this, too."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from redis import Redis
from rq import Queue

import field

VERSION = version("rq")
WORKER = [
    *("rq", "worker-pool", "-n", "4", "-w", "rq.worker.SimpleWorker", "-q"),
    *("-u", field.url(), field.QUEUE),
]

mark = field.marker()
client = Redis(port=field.port())
_queues = {name: Queue(name, connection=client) for name in (field.QUEUE, field.WARM)}


def no_op(v: str) -> None:
    mark()


async def add(queue: str) -> None:
    _queues[queue].enqueue("field_rq.no_op", kwargs=field.PAYLOAD, result_ttl=0)


async def add_many(queue: str, count: int) -> None:
    prepared = Queue.prepare_data("field_rq.no_op", kwargs=field.PAYLOAD, result_ttl=0)
    _queues[queue].enqueue_many([prepared] * count)


async def run(task: dict[str, Any]) -> None:
    if task["role"] == "work":
        await field.serve(task, VERSION, add_many, WORKER)
    else:
        await field.produce(task, VERSION, add, add_many)


if __name__ == "__main__":
    field.main(run)
