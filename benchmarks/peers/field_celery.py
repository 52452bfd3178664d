"""The measured process of Celery: `python field_celery.py '<task as JSON>'`; its worker imports this, too."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from celery import Celery

import field

VERSION = version("celery")
WORKERS = [
    [
        *("celery", "-A", "field_celery", "worker", "-n", f"w{number}@%h", "-Q", field.QUEUE),
        *("-P", "solo", "--prefetch-multiplier", "64", "-l", "ERROR"),
        *("--without-gossip", "--without-mingle", "--without-heartbeat"),
    ]
    for number in range(2)
]

mark = field.marker()
app = Celery("field", broker=field.url())
app.conf.update(
    task_ignore_result=True,
    task_store_errors_even_if_ignored=False,
    worker_send_task_events=False,
    worker_enable_remote_control=False,
    broker_connection_retry_on_startup=True,
    broker_pool_limit=1,
)


@app.task(name="no_op")
def no_op(v: str) -> None:
    mark()


async def add(queue: str) -> None:
    no_op.apply_async(kwargs=field.PAYLOAD, queue=queue)


async def add_many(queue: str, count: int) -> None:
    with app.producer_pool.acquire(block=True) as producer:
        for _ in range(count):
            no_op.apply_async(kwargs=field.PAYLOAD, queue=queue, producer=producer)


async def run(task: dict[str, Any]) -> None:
    if task["role"] == "work":
        await field.serve(task, VERSION, add_many, *WORKERS)
    else:
        await field.produce(task, VERSION, add, add_many)


if __name__ == "__main__":
    field.main(run)
