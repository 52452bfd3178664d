"""A worker that records every run: ``python -m tests.crew JSON``. Its peer is `tests/node/crew.js`.

The job's data decides what an attempt does: ``steps[n]`` is the step of its (n+1)th start, after ``take`` ms
of work. Start and end of every attempt go to the diary, one line each, before anything else can happen. The
process ends with its standard input, so that it never outlives the test.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from typing import Any

from oxcart import PermanentError, Queue, RunningJob, Snooze, TemporaryError, Worker


async def main(settings: dict[str, Any]) -> None:
    """Works until it is killed."""
    diary = os.open(settings["diary"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    queues = [Queue(name, url=settings["url"]) for name in settings["queues"]]

    def note(what: str, job: RunningJob, step: str) -> None:
        line = {
            "what": what,
            "job": job.id,
            "queue": job.queue,
            "start": job.fencing,
            "step": step,
            "at": time.time() * 1000,
            "side": settings["side"],
            "worker": settings["name"],
            "pid": os.getpid(),
        }
        os.write(diary, json.dumps(line).encode() + b"\n")

    async def run(job: RunningJob) -> Any:
        data: Any = job.data
        step = data["steps"][min(job.fencing, len(data["steps"])) - 1]
        note("began", job, step)
        if step == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if step == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        await asyncio.sleep(data["take"] / 1000)
        note("ended", job, step)
        if step == "bad":
            raise PermanentError(f"row {data['row']} is bad", code="E_ROW")
        if step == "fail":
            raise TemporaryError(f"row {data['row']} not yet")
        if step == "snooze":
            return Snooze(0.02)
        return data["row"]

    for queue in queues:
        queue.fallback(run)
    worker = Worker(
        *queues,
        name=settings["name"],
        concurrency=settings["concurrency"],
        lock_duration=settings["lock"] / 1000,
        stalled_interval=settings["check"] / 1000,
        max_stalled=settings["stalls"],
    )
    async with worker.running():
        print("ready", file=sys.stderr, flush=True)
        await asyncio.Event().wait()


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(70)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    asyncio.run(main(json.loads(sys.argv[1])))
