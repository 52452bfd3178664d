"""Ten workers with abilities in one process, for tests to kill: `python -m tests.chaos.mesh_program`.

Takes its settings as one JSON argument, and writes which worker starts and ends which job to a journal. The
process ends when its standard input does, so that it never outlives the test.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from typing import Any

from oxcart import Queue, RunningJob, Worker
from tests.chaos.program import Journal, _end_with_parent


async def main(settings: dict[str, Any]) -> None:
    journal = Journal(settings["journal"])
    queue = Queue("mesh", url=settings["url"])

    @queue.fallback
    async def run(job: RunningJob) -> None:
        journal.write("start", id=job.id, worker=job.worker_id, fencing=job.fencing)
        await asyncio.sleep(job.data["seconds"])
        journal.write("end", id=job.id, fencing=job.fencing)

    lease = settings["lease"]
    workers = [
        Worker(
            queue,
            concurrency=2,
            name=abilities["server"],
            abilities=abilities,
            lock_duration=lease,
            stalled_interval=lease,
            max_stalled=100,
        )
        for abilities in settings["workers"]
    ]
    running = [asyncio.create_task(worker.run()) for worker in workers]
    for worker, abilities in zip(workers, settings["workers"], strict=True):
        await worker.started.wait()
        journal.write("worker", worker=worker.id, abilities=abilities)
    journal.write("ready")
    await asyncio.gather(*running)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    asyncio.run(main(json.loads(sys.argv[1])))
