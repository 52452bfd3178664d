"""Counts what a job costs in instructions: ``make bench-instructions``.

The server runs under valgrind's callgrind, and in runs of its own the client does. Counts of instructions
repeat on a shared machine, timings do not. Each figure is a slope: the instructions of 6 000 jobs less those
of 2 000, divided by 4 000. Start-up and shutdown cancel out. The figure of ``process`` leaves out the adds
that come before it.

With ``OXCART_BENCH_PARTITIONS=16`` in the environment the queue is a partitioned one.

    python -m benchmarks.instructions [--base REV] [--kinds add_many add process] [--repeats 2] [--check]

``--base`` measures another commit as well. ``--check`` fails when this checkout is worse than that commit by
more than the spread of repeated runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.formal import checkout

ROOT = Path(__file__).parents[1]
KINDS = ("add_many", "add", "process")
FEW, MANY = 2_000, 6_000
CONCURRENCY = 100
#: The queue has so many partitions; none by default.
PARTITIONS = "OXCART_BENCH_PARTITIONS"
#: By which a count may differ between two runs of the same code: hash seeds and batches differ a little.
SPREAD = 0.005
#: By which the client's count may differ: it has timers, and the garbage collector runs when it likes.
CLIENT_SPREAD = 0.05


async def work(url: str, kind: str, jobs: int) -> None:
    """Does the measured work."""
    from oxcart import Queue, Worker
    from oxcart.engine import worker as engine

    # Under callgrind the server is about fifty times slower: a bound on its time would shrink every batch.
    engine.SPELL_US = 0  # type: ignore[attr-defined]

    async def nothing() -> None:
        pass

    data = {"text": "x" * 80, "n": 1}
    parts = os.environ.get(PARTITIONS)
    spread: dict[str, Any] = {"partitions": int(parts)} if parts else {}
    async with Queue("counted", url=url, **spread) as queue:
        # Commits before the parts of a queue called it process.
        (getattr(queue, "fallback", None) or queue.process)(nothing)  # type: ignore[attr-defined]
        if kind == "add":
            for _ in range(jobs):
                await queue.add("job", data)
        else:
            await queue.add_many([("job", data) for _ in range(jobs)])
        if kind != "process":
            return
        worker = Worker(queue, concurrency=CONCURRENCY)
        running = asyncio.create_task(worker.run())
        while worker.processed < jobs and not running.done():
            await asyncio.wait((running,), timeout=0.02)
        worker.stop()
        await running
        assert (await queue.counts())["completed"] == jobs


def run_client(url: str, kind: str, jobs: int, source: Path, *prefix: str) -> None:
    """Runs the work of one checkout in a process of its own, behind a command such as valgrind's."""
    environment = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [
            *prefix,
            sys.executable,
            "-m",
            "benchmarks.instructions",
            "--work",
            kind,
            "--url",
            url,
            "--jobs",
            str(jobs),
        ],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{kind}: {done.stderr}")


def count_server(kind: str, jobs: int, source: Path) -> int:
    """The instructions of a server that serves so many jobs, from its start to its end."""
    from tests.servers import ValkeyServer

    from oxcart.broker.embedded import binary_path

    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "callgrind.out"
        program = Path(folder) / "server"
        program.write_text(f'#!/bin/sh\nexec {" ".join(_callgrind(output))} {binary_path()} "$@"\n')
        program.chmod(0o755)
        # A slow clock of the server's own: its periodic work depends on time, not on jobs.
        with ValkeyServer(binary=program, hz=1, dynamic_hz=False) as server:
            run_client(server.url, kind, jobs, source)
        return _total(output)


def count_client(kind: str, jobs: int, source: Path) -> int:
    """The instructions of a client that adds or processes so many jobs, from its start to its end."""
    from tests.servers import ValkeyServer

    with tempfile.TemporaryDirectory() as folder, ValkeyServer() as server:
        output = Path(folder) / "callgrind.out"
        run_client(server.url, kind, jobs, source, *_callgrind(output))
        return _total(output)


def _callgrind(output: Path) -> list[str]:
    return ["valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={output}"]


def _total(output: Path) -> int:
    for line in output.read_text().splitlines():
        if line.startswith(("totals:", "summary:")):
            return int(line.split()[1])
    raise SystemExit("callgrind wrote no totals")


def slopes(
    count: Callable[[str, int, Path], int], kinds: list[str], source: Path, repeats: int
) -> dict[str, float]:
    """Instructions per job, by kind of work.

    The least of several counts stands for each: on a busy machine a client is late and its batches are small.
    """
    per_job: dict[str, float] = {}
    wanted = list(kinds)
    if "process" in wanted and "add_many" not in wanted:
        wanted.insert(0, "add_many")
    for kind in sorted(wanted, key=KINDS.index):
        least = {jobs: min(count(kind, jobs, source) for _ in range(repeats)) for jobs in (FEW, MANY)}
        per_job[kind] = (least[MANY] - least[FEW]) / (MANY - FEW)
        if kind == "process":
            per_job[kind] -= per_job["add_many"]
    return {kind: per_job[kind] for kind in kinds}


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--base", help="a commit to compare with")
    parser.add_argument("--repeats", type=int, default=2, help="of each count of instructions")
    parser.add_argument(
        "--check", action="store_true", help="exit 1 when this checkout is worse than the base"
    )
    parser.add_argument("--work", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int, default=MANY, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        asyncio.run(work(arguments.url, arguments.work, arguments.jobs))
        return 0
    if arguments.check and not arguments.base:
        parser.error("--check needs --base")
    sources = {"this": ROOT / "src"}
    if arguments.base:
        sources["base"] = checkout(arguments.base)
    results: dict[str, dict[str, dict[str, float]]] = {}
    kept = True
    for side, count, spread in (("server", count_server, SPREAD), ("client", count_client, CLIENT_SPREAD)):
        figures = results[side] = {
            name: slopes(count, arguments.kinds, source, arguments.repeats)
            for name, source in sources.items()
        }
        for kind in arguments.kinds:
            line = f"{kind:>9}: {figures['this'][kind]:>10,.0f} instructions of the {side} per job"
            if "base" in figures:
                ratio = figures["this"][kind] / figures["base"][kind]
                kept = kept and ratio <= 1 + spread
                line += f", base {figures['base'][kind]:,.0f}, ratio {ratio:.3f} (at most {1 + spread:g})"
            print(line, flush=True)
    output = ROOT / "build" / "bench-instructions.json"
    output.parent.mkdir(exist_ok=True)
    output.write_text(json.dumps(results, indent=2))
    return 0 if kept or not arguments.check else 1


if __name__ == "__main__":
    raise SystemExit(main())
