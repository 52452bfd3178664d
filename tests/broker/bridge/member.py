"""Workers of a Bridge namespace in one process, for tests to kill: `python -m tests.broker.bridge.member`.

Takes the server's URL, the workers as JSON (abilities by name), the concurrency of each, how long its leases
last, and the seconds that a job takes. Records the runs in sets and lists of the test on the same server.
Ends with its standard input, so that it never outlives the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
from typing import Any

from oxcart import Queue, Worker
from oxcart.engine.running import RunningJob


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(70)


def make_worker(url: str, name: str, able: Any, concurrency: int, lock: str, nap: float) -> Worker:
    queue = Queue("email", url=url, protocol="bridge")

    async def run(job: RunningJob) -> str:
        caller = queue._core.broker.caller
        await caller.command("RPUSH", "test:ran", json.dumps([job.id, name]))
        if await caller.command("SADD", "test:running", job.id) == 0:
            await caller.command("RPUSH", "test:twice", job.id)
        await asyncio.sleep(nap)
        await caller.command("SREM", "test:running", job.id)
        return name

    queue.fallback(run)
    return Worker(queue, name=name, abilities=able, concurrency=concurrency, lock_duration=lock)


async def main(url: str, crew: str, concurrency: int, lock: str, nap: float) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    async with contextlib.AsyncExitStack() as stack:
        for name, able in json.loads(crew).items():
            await stack.enter_async_context(make_worker(url, name, able, concurrency, lock, nap).running())
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], float(sys.argv[5])))
