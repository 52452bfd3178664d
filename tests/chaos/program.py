"""A worker process for tests to kill, stop and starve: `python -m tests.chaos.program`.

Takes its settings as one JSON argument and writes its steps to a file, because the server may be broken.
The process ends with its standard input, so that it never outlives the test.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from oxcart import Queue, RunningJob, SyncRunningJob, WaitForChildren, Worker
from oxcart.broker.connection import Reconnect


class Journal:
    """Appends one line per fact; short writes with O_APPEND do not mix."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, what: str, **facts: Any) -> None:
        line = json.dumps({"what": what, "pid": os.getpid(), "at": time.time(), **facts})
        os.write(self._file, line.encode() + b"\n")


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(70)


def _register(queue: Queue, journal: Journal, renewer: Callable[[], int | None]) -> None:
    def start(job: RunningJob | SyncRunningJob) -> None:
        facts = {"fencing": job.fencing, "attempt": job.attempt, "renewer": renewer()}
        journal.write("start", id=job.id, name=job.name, **facts)

    def end(job: RunningJob | SyncRunningJob) -> dict[str, Any]:
        journal.write("end", id=job.id, fencing=job.fencing, cancelled=job.cancel_reason)
        return {"pid": os.getpid(), "fencing": job.fencing}

    @queue.job
    async def nap(job: RunningJob, seconds: float = 0.0) -> dict[str, Any]:
        start(job)
        await asyncio.sleep(seconds)
        return end(job)

    @queue.job
    async def beat(job: RunningJob) -> None:
        start(job)

    @queue.job
    async def grow(job: RunningJob, children: int) -> Any:
        start(job)
        if not (await job.dependency_counts()).total:
            await job.add_children(*(nap.flow() for _ in range(children)))
            return WaitForChildren()
        return len(await job.children_values())

    @queue.job
    async def hold_gil(job: RunningJob, seconds: float) -> dict[str, Any]:
        start(job)
        # PyDLL keeps the interpreter lock during the call: no other thread of this process runs.
        libc = ctypes.PyDLL(None)
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            libc.usleep(int(min(left, 0.9) * 1_000_000))
        return end(job)

    @queue.job
    async def fork(job: RunningJob, seconds: float) -> dict[str, Any]:
        start(job)
        child = os.fork()
        if child == 0:  # holds a copy of every file of the worker
            time.sleep(seconds)
            os._exit(0)
        journal.write("forked", child=child)
        await asyncio.sleep(seconds)
        return end(job)

    @queue.job
    async def abort(job: RunningJob, seconds: float) -> None:
        """Ends the worker as a bug in C code would, beside the jobs that run by then."""
        start(job)
        await asyncio.sleep(seconds)
        os.abort()

    @queue.job
    async def deaf(job: RunningJob) -> None:
        start(job)
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                journal.write("told", id=job.id)

    def effect(job: RunningJob, number: int, dies: bool) -> int:
        journal.write("effect", id=job.id, fencing=job.fencing, number=number)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return number * number

    @queue.job
    async def steps(job: RunningJob, kills: list[str]) -> list[Any]:
        """Kills its own worker once per start: behind a step, within a step, or before a wait."""
        start(job)
        kill = kills[job.fencing - 1] if job.fencing <= len(kills) else ""
        results = []
        for number in (1, 2, 3):
            results.append(await job.step(f"step-{number}", effect, job, number, kill == f"within {number}"))
            if kill == f"behind {number}":
                os.kill(os.getpid(), signal.SIGKILL)
        return [*results, await job.wait_signal("go")]

    @queue.job
    def thread(job: SyncRunningJob, seconds: float) -> dict[str, Any]:
        start(job)
        time.sleep(seconds)
        return end(job)


async def _main(settings: dict[str, Any]) -> None:
    journal = Journal(settings["journal"])
    queue = Queue(settings["queue"], url=settings["url"], **settings.get("options", {}))
    _register(queue, journal, lambda: worker._leases.pid)
    worker = Worker(
        queue,
        concurrency=settings.get("concurrency", 1),
        lock_duration=settings["lease"],
        renew_every=settings.get("renew"),
        stalled_interval=settings.get("stalled_interval", settings["lease"]),
        max_stalled=settings.get("max_stalled", 1),
        timeout=settings.get("timeout", 1800),
        shutdown_timeout=settings.get("shutdown_timeout", 30),
        recover=settings.get("recover", True),
        reconnect=Reconnect(attempts=settings.get("attempts")),
    )
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.stop)
    running = asyncio.create_task(worker.run())
    await worker.started.wait()
    journal.write("ready")
    try:
        await running
    except Exception as error:
        journal.write("broken", error=f"{type(error).__name__}: {error}")
        raise SystemExit(3) from error
    finally:
        await queue.close()
    journal.write("stopped", processed=worker.processed)


def set_clock(seconds: float) -> None:
    """Sets the wall clock of this process so many seconds ahead."""
    true_ns = time.time_ns
    time.time_ns = lambda: true_ns() + int(seconds * 1e9)
    time.time = lambda: true_ns() / 1e9 + seconds


def main() -> None:
    settings = json.loads(sys.argv[1])
    if settings.get("skew"):
        set_clock(settings["skew"])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    threading.Thread(target=_end_with_parent, daemon=True).start()
    asyncio.run(_main(settings))


if __name__ == "__main__":
    main()
