"""Counts what partitions cost a server, and what a second server gains: `make bench-partitions`.

The servers run under valgrind's callgrind. Counts of instructions repeat on a shared machine, timings do not.
Each figure is the slope between 2 000 and 6 000 jobs, so that start-up and shutdown cancel out, without the
adds. The periodic loops are off: they cost by the second and not by the job (`make bench-idle`). So is the
time limit of a claim (2 ms of server time): under callgrind every call takes longer, and would claim eight
jobs.

- A job of a queue with 16 partitions on one server: at most 1.05 times the instructions of a job without.
- Two servers: the instructions of one server per job, over those of the busier of two. That is how many times
  the throughput of one they have where servers are the limit. Two cores cannot show it in time, because a
  worker needs about as much processor time as a server: the counts leave the workers out.

    python -m benchmarks.partitions [--partitions 16] [--repeats 2] [--check]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.instructions import CONCURRENCY, FEW, MANY, ROOT, _callgrind, _total

DEARER, FASTER = 1.05, 1.6


async def work(urls: list[str], partitions: int, jobs: int, processes: bool) -> None:
    """Adds jobs, and processes them if asked."""
    from oxcart import Queue, Worker
    from oxcart.engine import worker as engine

    engine.SPELL_US = 0  # type: ignore[attr-defined]  # under callgrind every call takes longer than that

    async def nothing() -> None:
        pass

    spread: dict[str, Any] = {"partitions": partitions} if partitions else {}
    where: Any = urls if len(urls) > 1 else urls[0]
    async with Queue("counted", url=where, add_timeout=600, **spread) as queue:  # valgrind is slow
        queue.fallback(nothing)
        await queue.add_many([("job", {"text": "x" * 80, "n": 1}) for _ in range(jobs)])
        if not processes:
            return
        worker = Worker(queue, concurrency=CONCURRENCY, recover=False)
        async with worker.running():
            while worker.processed < jobs:  # noqa: ASYNC110 - a timer costs less than an event per job
                await asyncio.sleep(0.02)
        assert (await queue.counts())["completed"] == jobs


def count(servers: int, partitions: int, jobs: int, *, processes: bool) -> list[int]:
    """Returns the instructions of each server, from its start to its end."""
    from tests.servers import ValkeyServer

    from oxcart.broker.embedded import binary_path

    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / f"callgrind.{number}" for number in range(servers)]
        with contextlib.ExitStack() as stack:
            urls = []
            for output in outputs:
                program = output.with_suffix(f"{output.suffix}.sh")
                program.write_text(f'#!/bin/sh\nexec {" ".join(_callgrind(output))} {binary_path()} "$@"\n')
                program.chmod(0o755)
                started = ValkeyServer(binary=program, hz=1, dynamic_hz=False)
                urls.append(stack.enter_context(started).url)
            facts = [str(partitions), str(jobs), "process" if processes else "add", *urls]
            subprocess.run(
                [sys.executable, "-m", "benchmarks.partitions", "--work", *facts],
                env=os.environ | {"PYTHONHASHSEED": "0"},
                cwd=ROOT,
                check=True,
            )
        return [_total(output) for output in outputs]


def per_job(servers: int, partitions: int, repeats: int) -> list[float]:
    """Returns the instructions of each server per processed job of the queue; the least of several counts."""

    def least(jobs: int, processes: bool) -> list[int]:
        counts = [count(servers, partitions, jobs, processes=processes) for _ in range(repeats)]
        return min(counts, key=sum)

    slopes = []
    for processes in (False, True):
        few, many = least(FEW, processes), least(MANY, processes)
        slopes.append([(more - less) / (MANY - FEW) for less, more in zip(few, many, strict=True)])
    added, both = slopes
    return [whole - part for whole, part in zip(both, added, strict=True)]


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=2, help="of each count of instructions")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bound is not met")
    parser.add_argument("--work", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        partitions, jobs, kind, *urls = args.work
        asyncio.run(work(urls, int(partitions), int(jobs), kind == "process"))
        return 0
    (plain,) = per_job(1, 0, args.repeats)
    (spread,) = per_job(1, args.partitions, args.repeats)
    two = per_job(2, args.partitions, args.repeats)
    dearer, faster = spread / plain, plain / max(two)
    print(f"one server, no partitions:   {plain:>9,.0f} instructions of the server per job")
    print(f"one server, {args.partitions} partitions:   {spread:>9,.0f}: {dearer:.3f} times (bound {DEARER})")
    print(f"two servers, {args.partitions} partitions:  {two[0]:>9,.0f} and {two[1]:,.0f}")
    print(f"two servers instead of one:  {faster:.2f} times the throughput (bound {FASTER})")
    return 1 if args.check and (dearer > DEARER or faster < FASTER) else 0


if __name__ == "__main__":
    sys.exit(main())
