"""A worker or a producer of one version; uses only what every version has.

    python member.py work URL PROTOCOL LABEL     runs jobs until its standard input closes
    python member.py add URL PROTOCOL LABEL N    adds N jobs
    python member.py steer URL PROTOCOL LABEL    replays, cancels, adds a flow and a schedule

The version is that of the ``oxcart`` on its path. Every job returns the label of the worker that ran it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from oxcart import Flow, Queue, RunningJob, TemporaryError, Worker


def open_queue(url: str, protocol: str) -> Queue:
    if protocol == "bridge":
        return Queue("mixed", url=url, protocol="bridge", namespace="fleet")
    return Queue("mixed", url=url)


async def work(url: str, protocol: str, label: str) -> None:
    async with open_queue(url, protocol) as queue:

        @queue.job
        async def mixed(job: RunningJob, by: str, n: int, shaky: bool) -> str:
            if shaky and job.attempt == 1:
                raise TemporaryError("once more")
            await asyncio.sleep(0.002)
            return label

        @queue.job
        async def gathered(job: RunningJob) -> list[Any]:
            return sorted((await job.children_values()).values())

        @queue.job(attempts=1)
        async def doomed() -> None:
            raise TemporaryError("never")

        @queue.job
        async def endless() -> None:
            await asyncio.Event().wait()

        @queue.job
        async def tick() -> str:
            return label

        async with Worker(queue, concurrency=8, name=label, shutdown_timeout=10).running():
            print("ready", flush=True)
            await asyncio.to_thread(sys.stdin.read)


async def add(url: str, protocol: str, label: str, count: int) -> None:
    rows: list[Any] = []
    for number in range(count):
        options: dict[str, Any] = {"attempts": 3, "backoff": "20ms"}
        if number % 5 == 1:
            options["delay"] = "50ms"
        if number % 5 == 2:
            options["priority"] = 1 + number % 10
        rows.append(("mixed", {"by": label, "n": number, "shaky": number % 7 == 0}, options))
    async with open_queue(url, protocol) as queue:
        for start in range(0, count, 50):
            await queue.add_many(rows[start : start + 50])


async def steer(url: str, protocol: str, label: str) -> None:
    """Does what acts on jobs of others; prints the ids of the jobs, as the test looks for them."""
    async with open_queue(url, protocol) as queue:
        doomed = await queue.add("doomed", {}, attempts=1)
        endless = await queue.add("endless", {})
        await _until(doomed, "failed")
        await queue.dead_letters.replay(doomed.id)
        await _until(endless, "active")
        await endless.cancel("no longer wanted")
        await _until(endless, "failed")
        ids = [doomed.id, endless.id]
        if protocol == "bullmq":
            children = [
                Flow(queue, "mixed", {"by": label, "n": n, "shaky": False}, attempts=3) for n in range(3)
            ]
            flow = await Flow(queue, "gathered", {}, children=children).add()
            schedules: Any = getattr(queue, "schedules", None) or queue.schedulers  # type: ignore[attr-defined]
            await schedules.upsert("tick", every="1s", limit=2, name="tick", data={})
            ids.append(flow.id)
        print(*ids, flush=True)


async def _until(handle: Any, state: str) -> None:
    async with asyncio.timeout(30):
        while await handle.state() != state:
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    role, *given = sys.argv[1:]
    if role == "work":
        asyncio.run(work(*given))
    elif role == "steer":
        asyncio.run(steer(*given))
    else:
        url, protocol, label, count = given
        asyncio.run(add(url, protocol, label, int(count)))
