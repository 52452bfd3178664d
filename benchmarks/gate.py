"""Fails when a job costs the server more than the committed baseline: ``make bench-gate``.

The short form of ``make bench-instructions``, for CI. A server runs under valgrind's callgrind, which counts
while jobs are added by one call, and while a worker of concurrency 100 processes them. The least of several
rounds stands for each kind: a late client makes small batches, which cost more per job.

    python -m benchmarks.gate [--renew]

``--renew`` writes the figures of this checkout into ``gate.json``, for a commit whose body gives the reason.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.servers import ValkeyServer

from benchmarks.growth import Counter, counting_server, fill, row
from benchmarks.instructions import CONCURRENCY
from oxcart import Queue, Worker
from oxcart.engine import worker as engine

BASELINE = Path(__file__).parent / "gate.json"
#: By which a figure may exceed the baseline.
MORE = 0.02
KINDS = ("add_many", "process")
JOBS, WARM = 2_000, 100
ROUNDS = 3

Figures = dict[str, float]


async def measure() -> Figures:
    """Counts one round: the server's instructions per added and per processed job."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ValkeyServer(binary=counting_server(folder), hz=1, dynamic_hz=False) as server:
            counter = Counter(server, folder)
            async with Queue("counted", url=server.url, add_timeout=600) as queue:
                queue.fallback(_nothing)
                await queue.add_many([row("warm")] * WARM)
                await _process(queue, WARM)
                async with counter.counts("add_many") as added:
                    await fill(queue, (row("x" * 80) for _ in range(JOBS)))
                async with counter.counts("process") as processed:
                    await _process(queue, JOBS)
            return {"add_many": added() / JOBS, "process": processed() / JOBS}


async def _nothing() -> None:
    pass


async def _process(queue: Queue, jobs: int) -> None:
    # Under callgrind the server is about fifty times slower: a bound on its time would shrink every batch.
    engine.SPELL_US, usual = 0, engine.SPELL_US  # type: ignore[attr-defined]
    try:
        worker = Worker(queue, concurrency=CONCURRENCY)
        running = asyncio.create_task(worker.run())
        while worker.processed < jobs and not running.done():
            await asyncio.wait((running,), timeout=0.02)
        worker.stop()
        await running
    finally:
        engine.SPELL_US = usual  # type: ignore[attr-defined]


def least(rounds: list[Figures]) -> Figures:
    """Returns the least figure of each kind."""
    return {kind: min(one[kind] for one in rounds) for kind in KINDS}


def faults(found: Figures, baseline: dict[str, Any]) -> list[str]:
    """Returns what costs too much."""
    return [
        f"{kind}: {found[kind]:,.0f} instructions of the server per job, "
        f"{found[kind] / baseline[kind]:.3f} times the baseline of {baseline[kind]:,.0f}; "
        f"at most {1 + MORE:g} times. If the reason is good: "
        "python -m benchmarks.gate --renew"
        for kind in KINDS
        if found[kind] > baseline[kind] * (1 + MORE)
    ]


def gate(baseline: dict[str, Any]) -> tuple[Figures, list[str]]:
    """Counts until a round keeps the baseline, at most `ROUNDS` times; returns figures and faults."""
    rounds: list[Figures] = []
    for _ in range(ROUNDS):
        rounds.append(asyncio.run(measure()))
        if not faults(least(rounds), baseline):
            break
    found = least(rounds)
    return found, faults(found, baseline)


def read() -> dict[str, Any]:
    """Reads the baseline."""
    baseline: dict[str, Any] = json.loads(BASELINE.read_text("utf-8"))
    return baseline


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--renew", action="store_true", help="write the figures of this checkout")
    if parser.parse_args(given).renew:
        found = least([asyncio.run(measure()) for _ in range(ROUNDS)])
        BASELINE.write_text(json.dumps({kind: round(found[kind]) for kind in KINDS}, indent=2) + "\n")
        print(json.dumps(found))
        return 0
    found, over = gate(read())
    for kind in KINDS:
        print(f"{kind:>9}: {found[kind]:>10,.0f} instructions of the server per job")
    for fault in over:
        print(fault)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
