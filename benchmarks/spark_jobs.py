"""Measures no-op jobs a second on Spark's executors (`oxcart.spark.run_jobs`), and processor time per job.

python -m benchmarks.spark_jobs [--jobs N] [--rounds N] [--check]

Each way runs once before it is measured. The rounds of all ways are interleaved. Processor time is that of
the tasks' Python processes and of the JVM, and that of the server apart.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.servers import ValkeyServer

from oxcart.spark import run_jobs
from oxcart.spark.session import open_session
from oxcart.sync import Queue

#: What ``--check`` asks of an async handler: jobs a second.
GOAL = 8_000

_TICKS = os.sysconf("SC_CLK_TCK")


async def no_op() -> None:
    """A handler in the worker's loop."""


def plain() -> None:
    """A handler in a thread."""


def arrow(batch: pa.RecordBatch) -> None:
    """A handler of a batch."""


WAYS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "async, default of 200": (no_op, {}),
    "async, concurrency 100": (no_op, {"concurrency": 100}),
    "plain, concurrency 100": (plain, {"concurrency": 100}),
    "Arrow batches of 500": (arrow, {"batch": 500, "schema": "n bigint", "within": 0.1}),
}


def seconds_of(pids: set[int]) -> float:
    """Returns the processor time of processes and of their children that have ended."""
    total = 0
    for pid in pids:
        try:
            fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(int(field) for field in fields[11:15])
    return total / _TICKS


def family(root: int) -> set[int]:
    """Returns a process and its living descendants."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def main() -> None:
    """Prints the median of each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--check", action="store_true", help="fail below the goal")
    asked = parser.parse_args()
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    costs: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    with ValkeyServer() as server:
        spark = open_session("local[2]")
        queue = Queue("bench", url=server.url)
        for number in range(asked.rounds + 1):
            for way, (handler, options) in WAYS.items():
                queue.add_many((("no-op", {"n": n}) for n in range(asked.jobs)), remove_on_complete=True)
                mine = family(os.getpid()) - {server.pid}
                before = seconds_of(mine), seconds_of({server.pid})
                done = run_jobs(spark, queue, handler, **options)
                now = family(os.getpid()) - {server.pid}
                after = seconds_of(now | mine), seconds_of({server.pid})
                assert (done.completed, done.left) == (asked.jobs, {}), done
                if number:
                    rates[way].append(done.completed / done.seconds)
                    used = [
                        1e6 * (end - start) / asked.jobs for start, end in zip(before, after, strict=True)
                    ]
                    costs[way].append((used[0], used[1]))
        spark.stop()
    load = os.getloadavg()[0]
    print(f"{asked.jobs} jobs, {asked.rounds} rounds, two tasks, load {load:.1f}, {os.cpu_count()} cores")
    print(f"{'':26}{'jobs/s':>8}{'min':>8}{'max':>8}{'µs per job':>12}{'server µs':>11}")
    for way, found in rates.items():
        ours, theirs = (statistics.median(one[part] for one in costs[way]) for part in (0, 1))
        middle = statistics.median(found)
        print(f"{way:26}{middle:8.0f}{min(found):8.0f}{max(found):8.0f}{ours:12.0f}{theirs:11.0f}")
    if asked.check and statistics.median(next(iter(rates.values()))) < GOAL:
        sys.exit(f"below {GOAL} jobs a second")


if __name__ == "__main__":
    main()
