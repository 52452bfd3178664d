"""Small workers, one after the other: `python brief.py <package> <port> <rounds> <jobs>`.

Each worker starts, runs its jobs and closes. Prints the ms of each part per round as JSON. The same file runs
with PyPI's bullmq and with our drop-in for it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from importlib import import_module
from typing import Any

bullmq: Any = import_module(sys.argv[1])


async def round_of(number: int, port: int, jobs: int) -> tuple[float, float, float]:
    """Ms until the worker exists, until its jobs have run, and until it is closed."""
    options = {"connection": {"host": "127.0.0.1", "port": port}}
    queue = bullmq.Queue(f"brief{number}", options)
    await queue.addBulk([{"name": "job", "data": {"n": n}} for n in range(jobs)])
    left, done = jobs, asyncio.Event()

    async def work(job: Any, token: str) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    times = [time.perf_counter()]
    worker = bullmq.Worker(f"brief{number}", work, options)
    times.append(time.perf_counter())
    await done.wait()
    times.append(time.perf_counter())
    await worker.close()
    times.append(time.perf_counter())
    await queue.close()
    made, ran, closed = (1000 * (later - earlier) for earlier, later in itertools.pairwise(times))
    return made, ran, closed


async def main() -> None:
    """Runs all rounds; the first warms up and is not printed."""
    port, rounds, jobs = map(int, sys.argv[2:5])
    measured = [await round_of(number, port, jobs) for number in range(rounds + 1)][1:]
    print(json.dumps(measured))


asyncio.run(main())
