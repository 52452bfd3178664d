"""The measured process of PyPI bullmq, and of our drop-in for it: the same file, by the package's name.

python bullmq_python.py <package> '<task as JSON>'

PyPI's package is run by the Python of its own environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))

import role  # type: ignore[import-not-found]

PACKAGE = sys.argv[1]
VERSION = version(PACKAGE.partition(".")[0])
bullmq: Any = import_module(PACKAGE)


async def no_op(job: Any, token: str) -> None:
    """The handler that does nothing."""


def make_queue(name: str, port: int) -> Any:
    return bullmq.Queue(name, {"connection": {"host": "127.0.0.1", "port": port}})


def make_worker(name: str, port: int, concurrency: int) -> Any:
    options = {"connection": {"host": "127.0.0.1", "port": port}, "concurrency": concurrency}
    return bullmq.Worker(name, no_op, options)


def rows(count: int) -> list[dict[str, Any]]:
    return [{"name": "job", "data": role.payload()} for _ in range(count)]


async def warm_queue(port: int, count: int) -> None:
    queue = make_queue("warm", port)
    await queue.addBulk(rows(count))
    for _ in range(count):
        await queue.add("warm", role.payload())
    await queue.close()


async def warm_worker(port: int, count: int, concurrency: int) -> None:
    await warm_queue(port, count // 2)
    done = asyncio.Event()
    left = count // 2 * 2

    def ended(job: Any, result: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    worker = make_worker("warm", port, concurrency)
    worker.on("completed", ended)
    await done.wait()
    await worker.close()


async def run(task: dict[str, Any]) -> None:
    name, jobs, warm = task["queue"], task["jobs"], task["warm"]
    queue = make_queue(name, task["port"])
    match task["role"]:
        case "fill":
            await role.ready(VERSION)
            await role.time_bulk(lambda: queue.addBulk(rows(jobs)), jobs)
        case "add_many":
            await warm_queue(task["warm_port"], warm)
            bulk = rows(jobs)
            await queue.getJobCounts()
            await role.ready(VERSION)
            await role.time_bulk(lambda: queue.addBulk(bulk), jobs)
        case "add":
            await warm_queue(task["warm_port"], warm)
            data = role.payload()
            await queue.getJobCounts()
            await role.ready(VERSION)
            await role.time_adds(lambda: queue.add("job", data), jobs)
        case "pace":
            await warm_queue(task["warm_port"], warm)
            await queue.getJobCounts()
            await role.ready(VERSION)
            await role.pace_adds(
                lambda stamp: queue.add("job", role.payload(stamp=stamp)), jobs, task["pause"]
            )
        case "work":
            await warm_worker(task["warm_port"], warm, task["concurrency"])
            await role.ready(VERSION)
            count = role.Count(jobs)
            worker = make_worker(name, task["port"], task["concurrency"])
            worker.on("completed", lambda job, result: count.one())
        case "wait":
            await warm_worker(task["warm_port"], warm, task["concurrency"])
            count = role.Count(jobs)
            worker = make_worker(name, task["port"], task["concurrency"])
            worker.on("completed", lambda job, result: count.one_since(job.data["t"]))
            await asyncio.sleep(1)
            await role.ready(VERSION)
        case other:
            raise SystemExit(f"no such role: {other}")
    await role.end()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(json.loads(sys.argv[2])))
