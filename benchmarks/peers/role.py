"""Shared by the Python peers: the protocol with the parent process, and the measurements.

    ready   the process is warm; the parent sends `go`
    report  the measurement, or the number of jobs so far; the parent sends `end`

Standard library only: one of the peers has an environment without Oxcart.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

#: Seconds between checks whether all jobs are done, and between reports of their number.
LOOK = 0.005
TELL = 0.1


def payload(size: int = 100, stamp: str | None = None) -> dict[str, str]:
    """Returns data of this many bytes as JSON without spaces."""
    if stamp is None:
        return {"v": "x" * (size - len('{"v":""}'))}
    return {"t": stamp, "v": "x" * max(0, size - len('{"t":"","v":""}') - len(stamp))}


def report(**facts: Any) -> None:
    """Sends one line to the parent."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


async def wait_for(word: str) -> None:
    """Waits for a word of the parent; ends the process if the parent is gone."""
    line = await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    if line.strip() != word:
        os._exit(1)


async def ready(version: str) -> None:
    """Reports that the process is warm, and waits for the start signal."""
    report(ready=True, version=version)
    await wait_for("go")


async def end() -> None:
    """Waits until the parent has read its clocks, then ends at once."""
    await wait_for("end")
    os._exit(0)


def percentile(values: list[float], share: float) -> float:
    """Returns the nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def latencies(values: list[float]) -> dict[str, float]:
    """Returns p50, p99 and mean of seconds, in ms."""
    return {
        "p50_ms": percentile(values, 0.5) * 1000,
        "p99_ms": percentile(values, 0.99) * 1000,
        "mean_ms": sum(values) / len(values) * 1000,
    }


async def time_adds(add: Callable[[], Awaitable[object]], count: int) -> None:
    """Adds one job after the other and reports how long each took."""
    spent: list[float] = []
    began = time.time()
    for _ in range(count):
        before = time.perf_counter()
        await add()
        spent.append(time.perf_counter() - before)
    report(count=count, began=began, last=time.time(), **latencies(spent))


async def time_bulk(add_all: Callable[[], Awaitable[object]], count: int) -> None:
    """Adds all jobs by one call and reports how long that took, serialisation included."""
    began = time.time()
    await add_all()
    report(count=count, began=began, last=time.time())


async def pace_adds(add: Callable[[str], Awaitable[object]], count: int, pause: float) -> None:
    """Adds stamped jobs with a pause between them, so that the worker is idle when the next one comes."""
    for _ in range(count):
        await add(str(time.time_ns()))
        await asyncio.sleep(pause)
    report(count=count)


class Count:
    """Counts completions in a worker process; reports the number regularly, and when all are done.

    Of two workers neither sees all jobs, so the parent adds up their reports.
    """

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.count = 0
        self.began = self.last = time.time()
        self._spent: list[float] = []
        self._reported = 0
        self._telling = asyncio.get_running_loop().create_task(self._tell())

    def one(self) -> None:
        """Counts one completion."""
        self.count += 1
        self.last = time.time()
        if self.count == self.expected:
            self._report()

    def one_since(self, stamp: str) -> None:
        """Counts one completion and records the time since its add."""
        self._spent.append(max(0, time.time_ns() - int(stamp)) / 1e9)
        self.one()

    def seen(self, count: int) -> None:
        """Takes the count of a system that counts by itself."""
        if count != self.count:
            self.count = count
            self.last = time.time()
            if count == self.expected:
                self._report()

    def _report(self) -> None:
        self._reported = self.count
        more = latencies(self._spent) if self._spent else {}
        report(count=self.count, began=self.began, last=self.last, **more)

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(TELL)
            if self.count != self._reported and not self._spent:
                self._report()
