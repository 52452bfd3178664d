"""Counts what a job costs in instructions: ``make bench-instructions``.

The server runs under valgrind's callgrind, and in runs of its own the client does. Counts of instructions
repeat on a shared machine, timings do not. Each figure is a slope: the instructions of 6 000 jobs less those
of 2 000, divided by 4 000. Start-up and shutdown cancel out. The figure of ``process`` leaves out the adds
that come before it.

With ``OXCART_BENCH_PARTITIONS=16`` in the environment the queue is a partitioned one.

    python -m benchmarks.instructions [--systems oxcart,node5,bound] [--base REV]
        [--kinds add_many add process] [--repeats 2] [--check]

``--systems`` also counts the server's instructions for Node's bullmq 5.62.0, and for the bare bound: one call
per 50 jobs that does only what the protocol demands (``bound/``). ``--base`` measures another commit as well.
``--check`` fails when a bar is not kept, or when this checkout is worse than that commit by more than the
spread of repeated runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks import bound
from benchmarks.formal import checkout

ROOT = Path(__file__).parents[1]
KINDS = ("add_many", "add", "process")
SIDES = ("server", "client")
FEW, MANY = 2_000, 6_000
CONCURRENCY = 100
#: The queue has so many partitions; none by default.
PARTITIONS = "OXCART_BENCH_PARTITIONS"
#: By which a count may differ between two runs of the same code: hash seeds and batches differ a little.
SPREAD = 0.005
#: By which the client's count may differ: it has timers, and the garbage collector runs when it likes.
CLIENT_SPREAD = 0.05
#: Whose servers are counted besides ours, and what their figures are called.
PEERS = {"node5": "Node bullmq 5.62.0", "bound": "the bare bound"}


@dataclass(frozen=True)
class Bar:
    """The most instructions of the server per job: a number of them, or times as many as a peer's."""

    kind: str
    most: float
    peer: str | None = None

    @property
    def words(self) -> str:
        if self.peer is None:
            return f"{self.kind}: at most {self.most:,.0f} instructions of the server per job"
        return f"{self.kind}: at most {self.most:g} times as many as {PEERS[self.peer]}"

    def figure(self, found: dict[str, dict[str, float]]) -> float | None:
        """Returns what the bar is compared with, or None if that was not counted."""
        ours = found["this"].get(self.kind)
        if ours is None or self.peer is None:
            return ours
        its = found.get(self.peer, {}).get(self.kind)
        return its and ours / its


BARS = (
    Bar("process", 1.3, "bound"),
    Bar("process", 165_000),
    Bar("add_many", 65_000),
)


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


def run_bound(url: str, kind: str, jobs: int) -> None:
    """Does the work by the scripts of the bare bound."""
    import redis

    with redis.Redis.from_url(url, socket_timeout=600) as client:
        bound.work(client, kind, jobs)


def run_node(url: str, kind: str, jobs: int) -> None:
    """Does the work by Node's bullmq; a job before and after it is part of its start."""
    roles = {"add": ("add",), "add_many": ("fill",), "process": ("fill", "work")}
    for role in roles[kind]:
        _node(url, role, jobs)


def _node(url: str, role: str, jobs: int) -> None:
    from benchmarks.systems import SYSTEMS

    port = int(url.rpartition(":")[2].partition("/")[0])
    task = {"role": role, "queue": "counted", "jobs": jobs, "warm": 2, "concurrency": CONCURRENCY}
    command = SYSTEMS["node5"].command({**task, "port": port, "warm_port": port})
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            reports = (json.loads(line) for line in process.stdout)
            _until(reports, "ready", True, process.stdin, "go")
            _until(reports, "count", jobs, process.stdin, "end")
        finally:
            process.stdin.close()
    if process.returncode:
        raise SystemExit(f"node5 {role}: exit code {process.returncode}")


def _until(reports: Iterator[Any], field: str, value: Any, to: IO[str], word: str) -> None:
    """Waits for a report of a peer, and answers it."""
    if not any(one.get(field) == value for one in reports):
        raise SystemExit(f"node5 ended before it reported {field} {value}")
    to.write(f"{word}\n")
    to.flush()


def count_peer(name: str) -> Callable[[str, int, Path], int]:
    """Returns a function that counts the server's instructions for a peer."""
    work = {"node5": run_node, "bound": run_bound}[name]
    return lambda kind, jobs, source: _counted(lambda url: work(url, kind, jobs))


def count_server(kind: str, jobs: int, source: Path) -> int:
    """The instructions of a server that serves so many jobs, from its start to its end."""
    return _counted(lambda url: run_client(url, kind, jobs, source))


def _counted(work: Callable[[str], None]) -> int:
    """The instructions of a server from its start to its end, with this work between."""
    from tests.servers import ValkeyServer

    from oxcart.broker.embedded import binary_path

    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "callgrind.out"
        program = Path(folder) / "server"
        program.write_text(f'#!/bin/sh\nexec {" ".join(_callgrind(output))} {binary_path()} "$@"\n')
        program.chmod(0o755)
        # A slow clock of the server's own: its periodic work depends on time, not on jobs.
        with ValkeyServer(binary=program, hz=1, dynamic_hz=False) as server:
            work(server.url)
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


def judge(found: dict[str, dict[str, float]]) -> list[tuple[Bar, float]]:
    """Returns the bars that were measured, with what is compared with them."""
    return [(bar, figure) for bar in BARS if (figure := bar.figure(found)) is not None]


def _line(side: str, kind: str, figures: dict[str, dict[str, float]], spread: float) -> tuple[str, bool]:
    """Returns the line of a kind of work, and whether this checkout is no worse than the base."""
    ours = figures["this"][kind]
    line, kept = f"{kind:>9}: {ours:>10,.0f} instructions of the {side} per job", True
    for name, its in figures.items():
        if name == "this":
            continue
        ratio = ours / its[kind]
        line += f", {name} {its[kind]:,.0f}, ratio {ratio:.3f}"
        if name == "base":
            kept = ratio <= 1 + spread
            line += f" (at most {1 + spread:g})"
    return line, kept


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--systems", default="oxcart", help=f"oxcart, and of {', '.join(PEERS)}")
    parser.add_argument("--sides", default="server,client", help=f"of {', '.join(SIDES)}")
    parser.add_argument("--base", help="a commit to compare with")
    parser.add_argument("--repeats", type=int, default=2, help="of each count of instructions")
    parser.add_argument(
        "--check", action="store_true", help="exit 1 when a bar is not kept or the base is better"
    )
    parser.add_argument("--work", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int, default=MANY, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        asyncio.run(work(arguments.url, arguments.work, arguments.jobs))
        return 0
    peers = [name for name in arguments.systems.split(",") if name != "oxcart"]
    for name in peers:
        if name not in PEERS:
            parser.error(f"--systems must be of oxcart, {', '.join(PEERS)}, got {name}")
    sides = arguments.sides.split(",")
    for side in sides:
        if side not in SIDES:
            parser.error(f"--sides must be of {', '.join(SIDES)}, got {side!r}")
    measured = [bar for bar in BARS if bar.kind in arguments.kinds and bar.peer in (None, *peers)]
    if arguments.check and not arguments.base and not (measured and "server" in sides):
        parser.error("--check has nothing to judge: count the server for a kind with a bar, or pass --base")
    return count(arguments, peers, sides)


def count(arguments: argparse.Namespace, peers: list[str], sides: list[str]) -> int:
    """Counts, prints and writes all figures; returns the exit code."""
    sources = {"this": ROOT / "src"}
    if arguments.base:
        sources["base"] = checkout(arguments.base)
    results: dict[str, Any] = {"base": arguments.base}
    kept = True
    kinds, repeats = arguments.kinds, arguments.repeats
    for side, counts, spread in (("server", count_server, SPREAD), ("client", count_client, CLIENT_SPREAD)):
        if side not in sides:
            continue
        figures = results[side] = {
            name: slopes(counts, kinds, source, repeats) for name, source in sources.items()
        }
        if side == "server":
            figures |= {name: slopes(count_peer(name), kinds, ROOT, repeats) for name in peers}
        for kind in kinds:
            line, no_worse = _line(side, kind, figures, spread)
            kept = kept and no_worse
            print(line, flush=True)
    for bar, figure in judge(results["server"]) if "server" in results else ():
        holds = figure <= bar.most
        kept = kept and holds
        print(f"{bar.words}: {figure:,.{0 if bar.peer is None else 2}f}, {'kept' if holds else 'NOT KEPT'}")
    output = ROOT / "build" / "bench-instructions.json"
    output.parent.mkdir(exist_ok=True)
    output.write_text(json.dumps(results, indent=2))
    return 0 if kept or not arguments.check else 1


if __name__ == "__main__":
    raise SystemExit(main())
