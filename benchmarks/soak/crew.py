"""Workers that come and go: one stays for the whole soak, the others are ended or killed and replaced.

``python -m benchmarks.soak.crew URL NAME CONCURRENCY`` is one of them: a worker of the BullMQ queues and one
of the Bridge namespace in a process. It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from benchmarks.soak.mix import ABILITIES, opened, run
from benchmarks.systems import ROOT
from oxcart import Worker

#: Seconds of a lease: short, so that the jobs of a killed worker come back within the soak.
LEASE = 6.0
_START, _END = 60.0, 60.0


async def work(url: str, name: str, concurrency: int) -> None:
    """Runs jobs until the process gets SIGTERM."""
    options: dict[str, Any] = {
        "name": name,
        "abilities": {"capabilities": ABILITIES},
        "lock_duration": LEASE,
        "renew_every": LEASE / 6,
        "stalled_interval": LEASE / 2,
        "max_stalled": 50,
    }
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    async with opened(url) as queues:
        for queue in queues:
            queue.fallback(run)
        async with (
            Worker(queues.main, queues.parts, concurrency=concurrency, **options).running(),
            Worker(queues.bridge, concurrency=max(1, concurrency // 10), **options).running(),
        ):
            print("ready", flush=True)
            await stop.wait()


class Crew:
    """The processes of the workers.

    Attributes:
        stayer: The worker that is never replaced, whose memory is measured.
        ended: How many workers were stopped.
        killed: How many workers were killed.
    """

    stayer: asyncio.subprocess.Process

    def __init__(self, url: str, concurrency: int, seed: int) -> None:
        self._url, self._concurrency = url, concurrency
        self._random = random.Random(seed)
        self._others: list[asyncio.subprocess.Process] = []
        self._started = 0
        self.ended = self.killed = 0

    async def begin(self, others: int) -> None:
        """Starts the stayer and the others."""
        self.stayer = await self._start()
        for _ in range(others):
            self._others.append(await self._start())

    async def replace(self) -> None:
        """Ends or kills one of the others and starts the next."""
        leaving = self._others.pop(0)
        if self._random.random() < 0.5:
            leaving.terminate()
            self.ended += 1
        else:
            leaving.kill()
            self.killed += 1
        await asyncio.wait_for(leaving.wait(), _END)
        self._others.append(await self._start())

    def check(self) -> None:
        """Fails if a worker has ended by itself."""
        for process in (self.stayer, *self._others):
            if process.returncode is not None:
                raise SystemExit(f"a worker ended by itself with {process.returncode}")

    async def end(self) -> None:
        """Stops all workers; kills those that do not stop in time."""
        all_of_them = [self.stayer, *self._others]
        for process in all_of_them:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        for process in all_of_them:
            try:
                await asyncio.wait_for(process.wait(), _END)
            except TimeoutError:
                process.kill()
                await process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        self._started += 1
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.soak.crew"),
            *(self._url, f"soak-{self._started}", str(self._concurrency)),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), _START)
        if line.strip() != b"ready":
            raise SystemExit("a worker did not start")
        return process


def memory(pid: int) -> float:
    """MiB of memory that a process and its renewer have in RAM."""
    total = _resident(pid)
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            total += _resident(int(child))
    return total


def _resident(pid: int) -> float:
    with contextlib.suppress(OSError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return 0.0


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(70)


if __name__ == "__main__":
    # A tenth of the jobs fails on purpose.
    logging.basicConfig(level=logging.ERROR)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    asyncio.run(work(sys.argv[1], sys.argv[2], int(sys.argv[3])))
