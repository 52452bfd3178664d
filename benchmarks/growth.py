"""Counts what a job costs the server by what is there already: ``make bench-growth``.

The server runs under valgrind's callgrind, which counts only while jobs are added, or claimed and completed.
So the queue may be filled before at no cost to the count, and the count repeats on a shared machine.

- ``queued``: jobs that wait in the queue, 1 to 1 000 000;
- ``payload``: bytes of a job's payload, 100 to 100 000;
- ``lanes``: lanes of the queue, 1 to 1 000, of which one has jobs;
- ``groups``: groups with a waiting job, 1 to 100 000.

    python -m benchmarks.growth [--only queued lanes] [--sizes 1 1000 | --most 10000] [--check]

The figures are merged into ``build/bench-growth.json``, so that a long run can be made in parts. ``--check``
fails where a job costs over 10 % more than at the smallest size; with payloads, where a further byte does.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tests.servers import ValkeyServer

from oxcart import Queue
from oxcart.broker.embedded import binary_path
from oxcart.broker.port import Ask, ClaimedJob, Outcome, OutcomeKind
from oxcart.model.errors import ReplyCode
from oxcart.model.target import Target

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "build" / "bench-growth.json"
#: Jobs that are counted, and how many of them a call claims and completes.
COUNTED, BATCH = 1_000, 50
#: By which a job may cost more than at the smallest size.
FLAT = 1.10
_TOTAL = ("totals:", "summary:")

Row = tuple[str, Any, dict[str, Any]]


@dataclass(frozen=True)
class Question:
    """What is varied.

    Attributes:
        name: Its name.
        unit: What the sizes count.
        sizes: The sizes.
        jobs: How many jobs are counted.
    """

    name: str
    unit: str
    sizes: tuple[int, ...]
    jobs: int = COUNTED


QUESTIONS = (
    Question("queued", "jobs that wait", (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)),
    Question("payload", "bytes of a payload", (100, 1_000, 10_000, 100_000), jobs=200),
    Question("lanes", "lanes", (1, 10, 100, 1_000)),
    Question("groups", "groups", (1, 10, 100, 1_000, 10_000, 100_000)),
)


def before(question: Question, size: int) -> Iterator[Row]:
    """The jobs that are in the queue before anything is counted."""
    match question.name:
        case "queued":
            return (row("x" * 80) for _ in range(size))
        case "lanes":
            lanes = (Target(capabilities=f"c{number}") for number in range(size))
            return (row("x" * 80, target=lane, delay="1d") for lane in lanes)
        case "groups":
            return (row("x" * 80, group=f"group-{number}") for number in range(size))
    return iter(())


def counted(question: Question, size: int) -> list[Row]:
    """The jobs whose adds are counted, and then their ends."""
    match question.name:
        case "payload":
            return [row("x" * (size - 20)) for _ in range(question.jobs)]
        case "lanes":
            return [row("x" * 80, target=Target(capabilities="c0")) for _ in range(question.jobs)]
        case "groups":
            return [row("x" * 80, group=f"group-{number % size}") for number in range(question.jobs)]
    return [row("x" * 80) for _ in range(question.jobs)]


def row(text: str, **options: Any) -> Row:
    return "job", {"text": text, "n": 1}, options


class Counter:
    """A server under callgrind, which counts on request."""

    def __init__(self, server: ValkeyServer, folder: Path) -> None:
        self._server, self._folder = server, folder

    @asynccontextmanager
    async def counts(self, name: str) -> AsyncIterator[Callable[[], int]]:
        """Counts the server's instructions meanwhile; the function returns them afterwards."""
        self._control("-z")
        self._control("-i", "on")
        yield lambda: self._read(name)
        # Turned off first, it would forget what it has counted.
        self._control("-d", name)
        self._control("-i", "off")

    def _control(self, *words: str) -> None:
        command = ["callgrind_control", *words, str(self._server.pid)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or "Error" in done.stdout:
            raise SystemExit(f"{' '.join(command)}: {done.stdout}{done.stderr}")

    def _read(self, name: str) -> int:
        for path in self._folder.glob("callgrind.out.*"):
            lines = path.read_text().splitlines()
            if any(line.startswith("desc: Trigger:") and line.endswith(f" {name}") for line in lines):
                return next(int(line.split()[1]) for line in lines if line.startswith(_TOTAL))
        raise SystemExit(f"callgrind wrote no counts of {name}")


def counting_server(folder: Path, *options: str) -> Path:
    """Writes a program that starts a server under callgrind, and returns its path."""
    words = ["valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no", *options]
    words.append(f"--callgrind-out-file={folder}/callgrind.out.%p")
    program = folder / "server"
    program.write_text(f'#!/bin/sh\nexec {" ".join(words)} {binary_path()} "$@"\n')
    program.chmod(0o755)
    return program


async def measure(question: Question, size: int) -> dict[str, float]:
    """Returns the instructions per added job, and per job that is claimed and completed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ValkeyServer() as server:
            client: Any = server.client(socket_timeout=600)
            async with Queue("counted", url=server.url) as queue:
                await fill(queue, before(question, size))
            client.save()
            server.kill()
            # The same data under callgrind, with a slow clock: periodic work depends on time, not on jobs.
            server._binary = counting_server(folder)
            server.options |= {"hz": 1, "dynamic_hz": False}
            server.start(within=1200)  # a million jobs are read many times slower than without callgrind
            counter = Counter(server, folder)
            async with Queue("counted", url=server.url, add_timeout=600) as queue:
                return await _count(queue, counter, question, size)


async def _count(queue: Queue, counter: Counter, question: Question, size: int) -> dict[str, float]:
    lane = "all;c=c0" if question.name == "lanes" else ""
    rows = counted(question, size)
    await queue.add_many([row("warm")] * BATCH)
    await complete(queue, BATCH)
    async with counter.counts("add") as added:
        await fill(queue, iter(rows))
    async with counter.counts("process") as processed:
        await complete(queue, len(rows), lane)
    return {"add": added() / len(rows), "process": processed() / len(rows)}


async def fill(queue: Queue, rows: Iterator[Row]) -> None:
    while part := list(islice(rows, 2_000)):
        await queue.add_many(part)


async def complete(queue: Queue, jobs: int, lane: str = "") -> None:
    """Claims and completes jobs as a worker does: in one call, but for a lane, whose queue claims.

    The outcome carries its claim, as a worker's does: without it the server reads each job again at its end.
    """
    broker: Any = queue._core.broker
    place = broker.lanes.open(lane) if lane else broker
    running: list[ClaimedJob] = []
    left = jobs
    while left > 0 or running:
        done = [
            Outcome(OutcomeKind.COMPLETED, job.id, job.token, job.starts, value=b"1", claim=job)
            for job in running
        ]
        count = min(BATCH, left)
        if lane:
            codes, _ = await place.finish(done)
            assert all(code == ReplyCode.DONE for code in codes), codes
            ask = Ask(count, lanes=("base", lane))
            running = (await broker.claim(ask)).jobs if count else []
        else:
            codes, claimed = await broker.finish(done, Ask(count))
            assert all(code == ReplyCode.DONE for code in codes), codes
            running = claimed.jobs
        if left and not running:
            raise SystemExit(f"{left} jobs could not be claimed")
        left -= len(running)


def judge(question: Question, figures: dict[int, dict[str, float]]) -> list[str]:
    """Returns where a job, or a further byte of a payload, costs too much more than at the smallest size."""
    if question.name == "payload":
        return _judge_bytes(figures)
    faults = []
    small, *others = sorted(figures)
    for large in others:
        for kind in ("add", "process"):
            ratio = figures[large][kind] / figures[small][kind]
            if ratio > FLAT:
                faults.append(
                    f"{question.name}, {kind}: {small:,} to {large:,} costs {ratio:.2f} times as much"
                )
    return faults


def _judge_bytes(figures: dict[int, dict[str, float]]) -> list[str]:
    """Compares what a further byte costs between neighbouring sizes.

    Sizes are left out whose further bytes cost less than a tenth of a job: two counts differ by up to 1 %,
    which would be more than a tenth of such a slope.
    """
    faults = []
    sizes = sorted(figures)
    for kind in ("add", "process"):
        least: tuple[float, int] | None = None
        for small, large in itertools.pairwise(sizes):
            more = figures[large][kind] - figures[small][kind]
            if more < figures[small][kind] / 10:
                continue
            slope = more / (large - small)
            if least and slope > least[0] * FLAT:
                faults.append(
                    f"payload, {kind}: a byte beyond {small:,} costs {slope / least[0]:.2f} times as much "
                    f"as one below {least[1]:,}"
                )
            if least is None or slope < least[0]:
                least = slope, large
    return faults


def merged(before: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Returns figures of a run and those of earlier runs at other sizes."""
    whole = {name: {**one, "sizes": dict(one["sizes"])} for name, one in before.items()}
    for name, one in found.items():
        sizes = whole.setdefault(name, {"unit": one["unit"], "sizes": {}})["sizes"]
        sizes |= {str(size): figures for size, figures in one["sizes"].items()}
    return whole


async def run(names: list[str], wanted: Callable[[int], bool]) -> tuple[dict[str, Any], list[str]]:
    """Measures all questions and prints a line per size."""
    found: dict[str, Any] = {}
    faults: list[str] = []
    for question in QUESTIONS:
        if question.name not in names:
            continue
        figures: dict[int, dict[str, float]] = {}
        for size in question.sizes:
            if wanted(size):
                figures[size] = await measure(question, size)
                one = figures[size]
                costs = f"add {one['add']:>12,.0f}   process {one['process']:>12,.0f}"
                print(f"{size:>9,} {question.unit:<20} {costs}", flush=True)
        found[question.name] = {"unit": question.unit, "sizes": figures}
        faults += judge(question, figures)
    return found, faults


def main() -> int:
    names = [question.name for question in QUESTIONS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--most", type=int, default=1_000_000, help="the largest size")
    parser.add_argument("--sizes", nargs="+", type=int, help="these sizes alone")
    parser.add_argument("--check", action="store_true", help="exit 1 when a cost is not flat")
    arguments = parser.parse_args()
    chosen = set(arguments.sizes or ())
    found, faults = asyncio.run(
        run(arguments.only, lambda size: size in chosen if chosen else size <= arguments.most)
    )
    OUTPUT.parent.mkdir(exist_ok=True)
    before = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else {}
    OUTPUT.write_text(json.dumps(merged(before, found), indent=2))
    for fault in faults:
        print(fault)
    return 1 if faults and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
