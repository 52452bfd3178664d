"""Where our worker spends its time on `process_c100`: functions by their own time.

    python -m benchmarks.profile [--jobs 20000] [--exact] [--add-many] [--top 40]

By default a timer of CPU time interrupts the worker and notes where it is (cheap, so the shares are true;
time in C is its Python caller's). `--exact` uses cProfile, which counts calls and makes small functions look
dearer than they are. The renewer process is not in it, the server neither.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import signal
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

from rich.table import Table
from tests.servers import ValkeyServer

import oxcart
from benchmarks.peers import role
from benchmarks.peers.oxcart import look, make_queue
from benchmarks.report import make_console

#: Seconds of CPU between two looks.
EVERY = 0.001


class Sampler:
    """Counts in which functions a timer of CPU time finds the main thread."""

    def __init__(self) -> None:
        self.own: Counter[CodeType] = Counter()
        self.whole: Counter[CodeType] = Counter()
        self.lines: Counter[tuple[CodeType, int]] = Counter()
        self.samples = 0

    def __enter__(self) -> Sampler:
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, EVERY, EVERY)
        return self

    def __exit__(self, *exc: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _look(self, number: int, frame: FrameType | None) -> None:
        if frame is None:
            return
        self.samples += 1
        self.own[frame.f_code] += 1
        self.lines[frame.f_code, frame.f_lineno] += 1
        seen = set()
        at: FrameType | None = frame
        while at is not None:
            if at.f_code not in seen:
                seen.add(at.f_code)
                self.whole[at.f_code] += 1
            at = at.f_back


def place(code: CodeType) -> str:
    path = Path(code.co_filename)
    parts = path.parts
    for mark in ("src", "site-packages", "lib"):
        if mark in parts:
            path = Path(*parts[parts.index(mark) + 1 :])
            break
    return f"{path}:{code.co_firstlineno} {code.co_qualname}"


async def work(queue: oxcart.Queue, jobs: int, concurrency: int) -> float:
    worker = oxcart.Worker(queue, concurrency=concurrency)
    began = time.perf_counter()
    running = asyncio.create_task(worker.run())
    await look(worker, running, jobs)
    seconds = time.perf_counter() - began
    worker.stop()
    await running
    return seconds


async def add(queue: oxcart.Queue, jobs: int) -> float:
    rows = [("job", role.payload()) for _ in range(jobs)]
    began = time.perf_counter()
    await queue.add_many(rows)
    return time.perf_counter() - began


async def _run(arguments: argparse.Namespace, port: int, sampler: Sampler, exact: cProfile.Profile) -> float:
    queue = make_queue("bench", port)
    await add(queue, 1000)
    await work(queue, 1000, arguments.concurrency)
    if not arguments.add_many:
        await add(queue, arguments.jobs)

    async def measured() -> float:
        if arguments.add_many:
            return await add(queue, arguments.jobs)
        return await work(queue, arguments.jobs, arguments.concurrency)

    if arguments.exact:
        exact.enable()
        seconds = await measured()
        exact.disable()
    else:
        with sampler:
            seconds = await measured()
    await queue.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.profile", description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--concurrency", type=int, default=100)
    parser.add_argument("--top", type=int, default=40, help="rows to print")
    parser.add_argument("--exact", action="store_true", help="cProfile instead of samples")
    parser.add_argument("--add-many", action="store_true", help="profile add_many instead of the worker")
    arguments = parser.parse_args()
    console = make_console()
    sampler, exact = Sampler(), cProfile.Profile()
    with ValkeyServer() as server:
        seconds = asyncio.run(_run(arguments, server.port, sampler, exact))
    console.print(
        f"{arguments.jobs} jobs in {seconds:.2f} s: {arguments.jobs / seconds:,.0f} jobs/s, profiled"
    )
    if arguments.exact:
        pstats.Stats(exact).sort_stats("tottime").print_stats(arguments.top)
        return
    per_job = sampler.samples * EVERY / arguments.jobs * 1e6
    console.print(f"{sampler.samples} samples of {EVERY * 1000:g} ms CPU: {per_job:.1f} µs per job")
    table = Table(title="functions by own time", title_justify="left")
    for column in ("own %", "own µs/job", "with callees %", "busiest line"):
        table.add_column(column, justify="right")
    table.add_column("function")
    for code, own in sampler.own.most_common(arguments.top):
        lines = {line: count for (found, line), count in sampler.lines.items() if found is code}
        busiest = max(lines, key=lines.__getitem__)
        table.add_row(
            f"{own / sampler.samples:.1%}",
            f"{own * EVERY / arguments.jobs * 1e6:.2f}",
            f"{sampler.whole[code] / sampler.samples:.1%}",
            f"{busiest} ({lines[busiest] / own:.0%})",
            place(code),
        )
    console.print(table)


if __name__ == "__main__":
    main()
