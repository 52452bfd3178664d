"""Adds a job with PyPI bullmq and fails it in its worker, in its own environment.

python pypi_failing.py <url> <queue>
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from bullmq import Queue, Worker


async def main() -> None:
    url, name = sys.argv[1:]

    async def process(job: Any, token: str) -> None:
        await job.updateProgress(30)
        raise ValueError("the bank is closed")

    queue = Queue(name, {"connection": url})
    job = await queue.add("charge", {"card": "visa-7"}, {"attempts": 1})
    worker = Worker(name, process, {"connection": url})
    print(job.id, flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until the parent process ends
    await worker.close(force=True)
    await queue.close()


if __name__ == "__main__":
    asyncio.run(main())
