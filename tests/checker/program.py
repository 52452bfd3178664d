"""A worker of ours on both protocols, for the nemesis to kill: ``python -m tests.checker.program JSON``.

It writes every begin and end of an attempt, and returns row, start and process as the result, so that the
stored result names the attempt that was accepted. The process ends with its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from oxcart import PermanentError, RunningJob, Snooze, TemporaryError, Worker
from tests.chaos.program import set_clock
from tests.checker.plan import BRIDGE, QUEUES
from tests.checker.producers import open_queue
from tests.checker.record import Record


async def main(settings: dict[str, Any]) -> None:
    """Works until it is killed."""
    record = Record(Path(settings["diary"]))

    async def run(job: RunningJob) -> Any:
        data: Any = job.data
        step = data["steps"][min(job.fencing, len(data["steps"])) - 1]
        facts = {"queue": job.queue, "job": job.id, "row": data["row"], "start": job.fencing, "step": step}
        record.write("began", side="oxcart", **facts)
        await asyncio.sleep(data["take"] / 1000)
        record.write("ended", side="oxcart", **facts)
        if step == "bad":
            raise PermanentError(f"{data['row']} is bad", code="E_ROW")
        if step == "fail":
            raise TemporaryError(f"{data['row']} not yet")
        if step == "snooze":
            return Snooze(0.02)
        return {"row": data["row"], "start": job.fencing, "pid": os.getpid()}

    url = settings["url"]
    bullmq = [open_queue(name, url) for name in QUEUES if name != BRIDGE]
    bridge = open_queue(BRIDGE, url)
    for queue in (*bullmq, bridge):
        queue.fallback(run)
    options: dict[str, Any] = {
        "name": settings["name"],
        "lock_duration": settings["lock"] / 1000,
        "renew_every": settings["lock"] / 5000,
        "stalled_interval": settings["check"] / 1000,
        "max_stalled": settings["stalls"],
    }
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(Worker(*bullmq, concurrency=12, **options).running())
        await stack.enter_async_context(Worker(bridge, concurrency=4, **options).running())
        print("ready", file=sys.stderr, flush=True)
        await asyncio.Event().wait()


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(70)


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    set_clock(told["skew"])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    asyncio.run(main(told))
