"""Where our worker spends its time on `process_c100`: functions by their own time.

    python -m benchmarks.profile [--jobs 20000] [--exact] [--add-many] [--top 40]

By default a timer interrupts the worker and records where it is (cheap, so the shares are right; time in C
counts for its Python caller). `--exact` uses cProfile, which counts calls but overstates small functions. The
renewer process and the server are not included.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import selectors
import signal
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

from rich.console import Console
from rich.table import Table
from tests.servers import ValkeyServer

import oxcart
from benchmarks.peers import role
from benchmarks.peers.oxcart import look, make_queue
from benchmarks.report import make_console

#: Seconds between two samples; a timer of CPU time would be no finer than the kernel's tick.
EVERY = 0.0005


class Sampler:
    """Counts in which functions a timer finds the main thread, waits for events left out.

    Attributes:
        cpu: Seconds of CPU between the begin and the end.
        own: Samples by the function that was running.
        whole: Samples by every function on the stack.
        lines: Samples by running function and line.
        samples: How many there are.
        stacks: Samples by the functions on the stack, the outermost first.
        waits: How often the thread was found waiting.
    """

    def __init__(self) -> None:
        self.cpu = 0.0
        self.own: Counter[CodeType] = Counter()
        self.whole: Counter[CodeType] = Counter()
        self.lines: Counter[tuple[CodeType, int | None]] = Counter()
        self.stacks: Counter[tuple[CodeType, ...]] = Counter()
        self.samples = 0
        self.waits = 0

    def __enter__(self) -> Sampler:
        self.cpu = -time.process_time()
        signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, EVERY, EVERY)
        return self

    def __exit__(self, *exc: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.cpu += time.process_time()

    def _look(self, number: int, frame: FrameType | None) -> None:
        if frame is None:
            return
        if frame.f_code is selectors.EpollSelector.select.__code__:
            self.waits += 1
            return
        self.samples += 1
        self.own[frame.f_code] += 1
        self.lines[frame.f_code, frame.f_lineno] += 1
        stack = []
        at: FrameType | None = frame
        while at is not None:
            stack.append(at.f_code)
            at = at.f_back
        self.stacks[tuple(reversed(stack))] += 1
        self.whole.update(set(stack))


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


async def sample(jobs: int, *, adds: bool) -> Sampler:
    """Samples a worker that processes jobs 100 at a time, or a producer that adds them."""
    sampler = Sampler()
    with ValkeyServer() as server:
        arguments = argparse.Namespace(jobs=jobs, concurrency=100, add_many=adds, exact=False)
        await _run(arguments, server.port, sampler, cProfile.Profile())
    return sampler


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
    rate = arguments.jobs / seconds
    console.print(f"{arguments.jobs} jobs in {seconds:.2f} s: {rate:,.0f} jobs/s, profiled")
    if arguments.exact:
        pstats.Stats(exact).sort_stats("tottime").print_stats(arguments.top)
    else:
        _print(console, sampler, arguments.jobs, arguments.top)


def _print(console: Console, sampler: Sampler, jobs: int, top: int) -> None:
    per_job = sampler.cpu / jobs * 1e6
    waits = sampler.waits / max(1, sampler.waits + sampler.samples)
    console.print(
        f"{per_job:.1f} µs of CPU per job in this process; {sampler.samples} samples; "
        f"found waiting in {waits:.0%} of looks"
    )
    table = Table(title="functions by own time", title_justify="left")
    for column in ("own %", "own µs/job", "with callees %", "busiest line"):
        table.add_column(column, justify="right")
    table.add_column("function")
    for code, own in sampler.own.most_common(top):
        lines = {line: count for (found, line), count in sampler.lines.items() if found is code}
        busiest = max(lines, key=lines.__getitem__)
        table.add_row(
            f"{own / sampler.samples:.1%}",
            f"{own / sampler.samples * per_job:.2f}",
            f"{sampler.whole[code] / sampler.samples:.1%}",
            f"{busiest} ({lines[busiest] / own:.0%})",
            place(code),
        )
    console.print(table)


if __name__ == "__main__":
    main()
