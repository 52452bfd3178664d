"""A worker of PyPI bullmq with a limiter, in its own environment; prints when it ran a job.

python pypi_limited.py <port> <queue> <max> <duration in ms>
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from bullmq import Worker


async def main() -> None:
    port, queue, most, duration = sys.argv[1:]

    async def process(job: Any, token: str) -> None:
        print(job.id, flush=True)

    options = {
        "connection": {"host": "127.0.0.1", "port": int(port)},
        "limiter": {"max": int(most), "duration": int(duration)},
    }
    worker = Worker(queue, process, options)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until the parent process ends
    await worker.close(force=True)


if __name__ == "__main__":
    asyncio.run(main())
