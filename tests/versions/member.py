"""A worker or a producer of one version; uses only what every version has.

    python member.py work URL PROTOCOL LABEL     runs jobs until its standard input closes
    python member.py add URL PROTOCOL LABEL N    adds N jobs

The version is that of the ``oxcart`` on its path. Every job returns the label of the worker that ran it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from oxcart import Queue, RunningJob, TemporaryError, Worker


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


if __name__ == "__main__":
    role, *given = sys.argv[1:]
    if role == "work":
        asyncio.run(work(*given))
    else:
        url, protocol, label, count = given
        asyncio.run(add(url, protocol, label, int(count)))
