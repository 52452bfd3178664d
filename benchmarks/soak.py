"""Many jobs through one worker: memory must stay flat: `make soak`, or `python -m benchmarks.soak --help`.

The worker is a process of its own; this one keeps its queue filled and samples the memory of the worker and
of its renewer, and what is left on the server. After the first fifth of the jobs, which fills pools and
caches, neither process may grow by more than the bounds below, and neither may the number of keys.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from tests.servers import ValkeyServer

import oxcart
from benchmarks.peers import role
from benchmarks.peers.oxcart import make_queue
from benchmarks.report import make_console
from benchmarks.systems import ROOT

#: MiB by which the worker, and its renewer, may grow between the first fifth and the end.
WORKER_BOUND = 8.0
RENEWER_BOUND = 4.0
#: Keys of our own that may be on the server: answers of calls per slot, and a few indexes.
OUR_KEYS_BOUND = 50
#: Completed jobs that are kept, so that the server's memory can be seen to be flat as well.
KEPT = 1000

CHUNK = 2500
DEEP = 10_000
WARM = 0.2


@dataclass(frozen=True)
class Sample:
    """One sample: memory in MiB, and keys on the server."""

    jobs: int
    worker: float
    renewer: float
    keys: int
    ours: int
    server: float


def rss(pid: int) -> float:
    """MiB of memory that a process has in RAM."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def child_of(pid: int) -> int | None:
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    return None


def slope(samples: list[Sample], field: str) -> float:
    """Bytes per job by which a figure grows, by least squares."""
    if len(samples) < 2:
        return 0.0
    fit = statistics.linear_regression(
        [one.jobs for one in samples], [getattr(one, field) for one in samples]
    )
    return fit.slope * 2**20


async def work(port: int, concurrency: int) -> None:
    """The worker's process: runs until its parent stops it."""
    # Frequent renewals, so that the renewer has used all its code before memory is compared.
    worker = oxcart.Worker(make_queue("soak", port), concurrency=concurrency, renew_every=0.5)
    running = asyncio.create_task(worker.run())
    await worker.started.wait()
    role.report(ready=True)
    ended = asyncio.create_task(role.wait_for("end"))
    await asyncio.wait((running, ended), return_when=asyncio.FIRST_COMPLETED)
    worker.stop()
    await running


async def produce(queue: oxcart.Queue, jobs: int, client: Any) -> None:
    """Keeps the queue filled, but short."""
    added = 0
    while added < jobs:
        if client.llen("bull:soak:wait") > DEEP:
            await asyncio.sleep(0.02)
            continue
        count = min(CHUNK, jobs - added)
        rows = [("job", role.payload()) for _ in range(count)]
        await queue.add_many(rows, remove_on_complete=KEPT)
        added += count


def finished(client: Any) -> int:
    """Returns the number of completed jobs: the added jobs less the remaining ones."""
    added = int(client.get("bull:soak:id") or 0)
    return added - int(client.llen("bull:soak:wait")) - int(client.llen("bull:soak:active"))


def look(client: Any, worker: int) -> Sample:
    renewer = child_of(worker)
    return Sample(
        jobs=finished(client),
        worker=rss(worker),
        renewer=rss(renewer) if renewer else 0.0,
        keys=client.dbsize() - client.llen("bull:soak:wait") - 2 * client.llen("bull:soak:active"),
        ours=sum(1 for _ in client.scan_iter("bull:soak:ox:*", count=10_000)),
        server=client.info("memory")["used_memory"] / 2**20,
    )


async def soak(arguments: argparse.Namespace) -> bool:
    console = make_console()
    with ValkeyServer() as server:
        client: Any = server.client()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.soak", "--worker", str(server.port)),
            *("--concurrency", str(arguments.concurrency)),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdin is not None
        await process.stdout.readline()
        queue = oxcart.Queue("soak", url=server.url)
        began = time.monotonic()
        producing = asyncio.create_task(produce(queue, arguments.jobs, client))
        samples: list[Sample] = []
        try:
            while not samples or samples[-1].jobs < arguments.jobs:
                await asyncio.sleep(arguments.every)
                if producing.done():
                    producing.result()
                if process.returncode is not None:
                    raise SystemExit(f"the worker ended with {process.returncode}")
                if finished(client) > 0:
                    samples.append(look(client, process.pid))
            seconds = time.monotonic() - began
        finally:
            producing.cancel()
            if process.returncode is None:
                process.stdin.write(b"end\n")
                await process.wait()
        completed = client.zcard("bull:soak:completed")
        await queue.close()
    table = Table(title=f"{arguments.jobs:,} jobs, concurrency {arguments.concurrency}", title_justify="left")
    for column in (
        "jobs",
        "worker MiB",
        "renewer MiB",
        "server MiB",
        "keys but waiting jobs",
        "our own keys",
    ):
        table.add_column(column, justify="right")
    for one in samples[:: max(1, len(samples) // 20)] + samples[-1:]:
        table.add_row(
            f"{one.jobs:,}",
            f"{one.worker:.1f}",
            f"{one.renewer:.1f}",
            f"{one.server:.1f}",
            f"{one.keys:,}",
            f"{one.ours}",
        )
    console.print(table)
    warm = [one for one in samples if one.jobs >= WARM * arguments.jobs] or samples[-1:]
    kept = True
    for what, field, bound in (("worker", "worker", WORKER_BOUND), ("renewer", "renewer", RENEWER_BOUND)):
        grown = getattr(warm[-1], field) - getattr(warm[0], field)
        good = grown <= bound
        kept = kept and good
        console.print(
            f"{what}: grew by {grown:+.2f} MiB over the last {warm[-1].jobs - warm[0].jobs:,} jobs "
            f"({slope(warm, field):+.1f} bytes per job), bound {bound:g} MiB: {_word(good)}"
        )
    most = max(one.ours for one in samples)
    console.print(f"our own keys: {most} at most, bound {OUR_KEYS_BOUND}: {_word(most <= OUR_KEYS_BOUND)}")
    good = completed <= KEPT
    console.print(f"completed jobs kept: {completed}, asked for {KEPT}: {_word(good)}")
    console.print(f"[dim]{arguments.jobs / seconds:,.0f} jobs/s with the producer on the same machine[/dim]")
    return kept and good and most <= OUR_KEYS_BOUND


def _word(good: bool) -> str:
    return "[green]flat[/green]" if good else "[red]NOT FLAT[/red]"


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.soak", description=__doc__)
    parser.add_argument("--jobs", type=int, default=200_000, help="jobs in all (200000)")
    parser.add_argument("--concurrency", type=int, default=100, help="of the worker (100)")
    parser.add_argument("--every", type=float, default=0.5, help="seconds between samples (0.5)")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        asyncio.run(work(arguments.worker, arguments.concurrency))
        return 0
    return 0 if asyncio.run(soak(arguments)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
