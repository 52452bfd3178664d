"""A worker of a Bridge namespace in a process of its own, to be killed: `python -m tests.bridge.member`.

Takes the server's URL, its name, its abilities as JSON, its concurrency, how long its leases last, and the
seconds that a job takes. Says what it runs in sets and lists of the test's own on the same server. Ends when
its standard input does, so that it never outlives the test.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading

from oxcart import Queue, Worker
from oxcart.engine.running import RunningJob


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(70)


async def main(url: str, name: str, able: str, concurrency: int, lock: str, nap: float) -> None:
    queue = Queue("email", url=url, protocol="bridge")

    async def run(job: RunningJob) -> str:
        said = queue.broker.caller
        await said.command("RPUSH", "test:ran", json.dumps([job.id, name]))
        if await said.command("SADD", "test:running", job.id) == 0:
            await said.command("RPUSH", "test:twice", job.id)
        await asyncio.sleep(nap)
        await said.command("SREM", "test:running", job.id)
        return name

    queue.process(run)
    worker = Worker(queue, name=name, abilities=json.loads(able), concurrency=concurrency, lock_duration=lock)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    async with worker.running():
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(
        main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5], float(sys.argv[6]))
    )
