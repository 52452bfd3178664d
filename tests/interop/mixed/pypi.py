"""PyPI bullmq in a mixed fleet, run by the Python of its environment: a worker, or a producer.

    python pypi.py '{"role": "work", "url": …, "queues": […], "name": …, "diary": …, "concurrency": …}'
    python pypi.py '{"role": "add", "url": …}'

The worker keeps a diary as `tests/node/crew.js` does. The producer reads commands and answers them as
`tests/node/driver.js` does. Both end with their standard input.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from bullmq import FlowProducer, Queue, UnrecoverableError, Worker


def connection(settings: dict[str, Any]) -> dict[str, Any]:
    address = urlsplit(settings["url"])
    return {"host": address.hostname, "port": address.port}


async def work(settings: dict[str, Any]) -> None:
    diary = os.open(settings["diary"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(what: str, job: Any, step: str) -> None:
        line = {
            "what": what,
            "job": job.id,
            "queue": job.queue.name,
            "start": job.attemptsStarted,
            "step": step,
            "at": time.time() * 1000,
            "side": "pypi",
            "worker": settings["name"],
            "pid": os.getpid(),
        }
        os.write(diary, json.dumps(line).encode() + b"\n")

    async def run(job: Any, token: str) -> Any:
        data = job.data
        step = data["steps"][min(job.attemptsStarted, len(data["steps"])) - 1]
        note("began", job, step)
        await asyncio.sleep(data["take"] / 1000)
        note("ended", job, step)
        if step == "bad":
            raise UnrecoverableError(f"row {data['row']} is bad")
        if step == "fail":
            raise RuntimeError(f"row {data['row']} not yet")
        return data["row"]

    options = {
        "connection": connection(settings),
        "concurrency": settings["concurrency"],
        "name": settings["name"],
        "lockDuration": settings["lock"],
        "stalledInterval": settings["check"],
        "maxStalledCount": settings["stalls"],
        "drainDelay": 1,
    }
    workers = [Worker(queue, run, options) for queue in settings["queues"]]
    for worker in workers:
        worker.on("error", lambda *args: print(*args, file=sys.stderr, flush=True))
    print("ready", flush=True)
    await asyncio.Event().wait()


class Producer:
    """The operations of `driver.js` that a producer needs."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._connection = connection(settings)
        self._flows = FlowProducer({"connection": self._connection})
        self._queues: dict[str, Any] = {}

    def _queue(self, name: str) -> Any:
        if name not in self._queues:
            self._queues[name] = Queue(name, {"connection": self._connection})
        return self._queues[name]

    async def addBulk(self, queue: str, jobs: list[dict[str, Any]]) -> list[str]:
        return [job.id for job in await self._queue(queue).addBulk(jobs)]

    async def addFlow(self, flow: dict[str, Any]) -> str:
        return str((await self._flows.add(flow))["job"].id)

    async def upsertScheduler(
        self, queue: str, key: str, repeat: dict[str, Any], template: dict[str, Any]
    ) -> str:
        given = template["name"], template["data"], template.get("opts", {})
        return str((await self._queue(queue).upsertJobScheduler(key, repeat, *given)).id)

    async def close(self) -> None:
        await self._flows.close()
        for queue in self._queues.values():
            await queue.close()


async def add(settings: dict[str, Any]) -> None:
    producer = Producer(settings)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked = json.loads(line)
        answer: dict[str, Any] = {"id": asked["id"]}
        try:
            answer["result"] = await getattr(producer, asked["op"])(**asked["args"])
        except Exception as error:
            answer["error"] = {"message": str(error), "name": type(error).__name__, "code": None}
        print(json.dumps(answer), flush=True)


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(70)


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    if settings["role"] == "work":
        threading.Thread(target=_end_with_parent, daemon=True).start()
        asyncio.run(work(settings))
    else:
        asyncio.run(add(settings))
