"""Random graphs over queues of Oxcart, of Node and of both end by the table while workers are killed.

`OXCART_GRAPH=1000` sets how many jobs a graph has, `OXCART_SEED` which one it is. `make graphs` runs the long
forms: a large graph with dying workers, and one without, which has to be done in time
(`OXCART_GRAPH_TIMED=1`).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from oxcart import Graph, JobHandle, Queue
from oxcart.graph import GraphJob
from oxcart.model.graph import Kind, effect
from oxcart.model.state import TERMINAL, State
from tests.nodes import NODE_FOLDER, installed, node_missing
from tests.servers import ValkeyServer
from tests.signals import eventually

pytestmark = [pytest.mark.node]

JOBS = int(os.environ.get("OXCART_GRAPH", "100"))
SEED = int(os.environ.get("OXCART_SEED", "5"))
#: Whether to check the duration of the run; only on an otherwise idle machine.
TIMED = os.environ.get("OXCART_GRAPH_TIMED") == "1"
LIMIT = 60 + JOBS / 5
ROOT = Path(__file__).parents[2]
#: Which side works on which queue.
QUEUES = {"ours": ("oxcart",), "theirs": ("node",), "both": ("oxcart", "node")}

#: Kinds of jobs: steps, attempts, and the end if the job may run.
OUTCOMES: dict[str, tuple[list[str], int, State]] = {
    "fine": (["ok"], 3, State.COMPLETED),
    "again": (["fail", "ok"], 3, State.COMPLETED),
    "bad": (["bad"], 3, State.FAILED),
    "dead": (["fail"], 1, State.DEAD_LETTER),
    "dies": (["die", "ok"], 3, State.COMPLETED),
    "cancelled": (["ok"], 3, State.CANCELLED),
}


class Planned:
    """A planned job: its steps, its dependencies, and the seconds that it runs."""

    def __init__(
        self, job: GraphJob, what: str, after: list[int], after_any: list[int], seconds: float
    ) -> None:
        self.job = job
        self.what = what
        self.after = after
        self.after_any = after_any
        self.seconds = seconds


def plan(graph: Graph, queues: dict[str, Queue], rng: random.Random, jobs: int) -> list[Planned]:
    made: list[Planned] = []
    for number in range(jobs):
        place = rng.choice(list(queues))
        kinds = ["fine"] * 14 + ["again"] * 2
        kinds += ["dies"] if place == "ours" and not TIMED else []
        # About ten jobs fail, however large the graph is: otherwise hardly any job of it would run.
        kinds = rng.choice([["bad"], ["dead"]]) if rng.random() < 10 / jobs else kinds
        others = rng.sample(range(max(0, number - 30), number), min(number, rng.choice([0, 1, 1, 2, 2, 3])))
        kinds = ["cancelled"] if not others and rng.random() < 10 / jobs else kinds
        if number < 2 and not TIMED:
            place, kinds = "ours", ["dies"]
        what = rng.choice(kinds)
        steps, attempts, _ = OUTCOMES[what]
        split = rng.randint(0, len(others)) if rng.random() < 0.3 else len(others)
        after, after_any = others[:split], others[split:]
        take = rng.randint(20, 80) if TIMED else rng.randint(1, 8)
        data = {"row": number, "take": take, "steps": [*steps, *steps[-1:] * 20]}
        job = graph.job(
            "n",
            data,
            queue=queues[place],
            after=[made[other].job for other in after],
            after_any=[made[other].job for other in after_any],
            job_id=f"j{number}",
            attempts=attempts,
            backoff={"type": "fixed", "delay": 10},
            delay="1h" if what == "cancelled" else 0,
            remove_on_complete=False,
        )
        made.append(Planned(job, what, after, after_any, take * (2 if what == "again" else 1) / 1000))
    return made


class Crew:
    """The worker processes; our own are restarted when they die."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.deaths = 0

    def __enter__(self) -> Self:
        for name in ("oxcart-1", "oxcart-2", "node-1"):
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()

    def start(self, name: str) -> None:
        side = name.partition("-")[0]
        settings: dict[str, Any] = {
            "side": side,
            "url": self._url,
            "queues": [queue for queue, sides in QUEUES.items() if side in sides],
            "name": name,
            "diary": str(self._folder / "diary"),
            "concurrency": 4,
            "lock": 1500 if side == "oxcart" else 30_000,
            "check": 500,
            "stalls": 20,
        }
        command = [sys.executable, "-m", "tests.crew"]
        if side == "node":
            command, settings["folder"] = ["node", str(NODE_FOLDER / "crew.js")], str(installed("v5"))
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [*command, json.dumps(settings)], cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log
            )

    def ready(self) -> None:
        end = time.monotonic() + LIMIT
        for name in self._running:
            while "ready" not in (self._folder / f"{name}.log").read_text(errors="replace"):
                assert time.monotonic() < end, self.logs()
                time.sleep(0.02)

    def mend(self) -> None:
        for name, process in list(self._running.items()):
            if process.poll() is not None:
                assert name.startswith("oxcart"), self.logs()
                assert process.stdin is not None
                process.stdin.close()
                self.deaths += 1
                self.start(name)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self._folder / "diary").read_text().splitlines()]

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in self._folder.glob("*.log"))


def bound(planned: list[Planned], ran: set[str]) -> float:
    """Seconds within which a graph must end: twice its longest path and its work, plus one."""
    ends: list[float] = []
    work = dict.fromkeys(QUEUES, 0.0)
    for number, one in enumerate(planned):
        seconds = one.seconds if f"j{number}" in ran else 0.0
        ends.append(seconds + max((ends[n] for n in [*one.after, *one.after_any]), default=0.0))
        work[one.job.queue.name] += seconds
    # A worker of ours has its four slots for all its queues, one of Node's for each.
    return 2 * (max(ends) + max(sum(work.values()) / 16, work["theirs"] / 4)) + 1


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    missing = node_missing()
    if missing is not None:
        pytest.skip(missing)
    with ValkeyServer() as server:
        yield server


async def ended(crew: Crew, handles: list[JobHandle[Any]]) -> list[State]:
    end = time.monotonic() + LIMIT
    queues = {handle.queue.name: handle.queue for handle in handles}
    while True:
        found: dict[str, State | None] = {}
        for queue in queues.values():
            ids = [one.id for one in handles if one.queue is queue]
            found |= {job.id: job.state for job in await queue.jobs.get_many(ids) if job is not None}
        states = [found[handle.id] for handle in handles]
        left = [f"{name} {state}" for name, state in found.items() if state not in TERMINAL]
        if not left:
            return [state for state in states if state is not None]
        assert time.monotonic() < end, f"not ended: {left}\n{crew.logs()}"
        crew.mend()
        await asyncio.sleep(0.1)


def faults(planned: list[Planned], states: list[State], lines: list[dict[str, Any]]) -> list[str]:
    """Yields each end, run or order that differs from the table."""
    found: list[str] = []
    began: dict[str, int] = {}
    done: dict[str, int] = {}
    for place, line in enumerate(lines):
        if line["what"] == "began":
            began.setdefault(line["job"], place)
        elif line["step"] == OUTCOMES[planned[int(line["job"][1:])].what][0][-1]:
            # The first end of that kind: a worker that was held up for longer than its lease ends late.
            done.setdefault(line["job"], place)
    for number, one in enumerate(planned):
        name = f"j{number}"
        bad = {effect(Kind.AFTER, states[other]) for other in one.after} - {None}
        allowed = bad or {OUTCOMES[one.what][2]}
        if states[number] not in allowed:
            found.append(f"{name} ({one.what}) is {states[number]}, may be {allowed}")
        if bad and name in began:
            found.append(f"{name} ran though a dependency had not completed")
        if name in began:
            found += [
                f"{name} ran before j{other} had ended"
                for other in one.after
                if done.get(f"j{other}", len(lines)) > began[name]
            ]
    return found


@pytest.mark.timeout(240)
async def test_a_random_graph_ends_by_the_table(server: ValkeyServer, tmp_path: Path) -> None:
    queues = {name: Queue(name, url=server.url) for name in QUEUES}
    graph = Graph(queues["ours"])
    planned = plan(graph, queues, random.Random(SEED), JOBS)
    with Crew(server.url, tmp_path) as crew:
        await asyncio.to_thread(crew.ready)
        began = time.monotonic()
        handles = await graph.add()
        for one, handle in zip(planned, handles, strict=True):
            if one.what == "cancelled":
                await handle.cancel()
        states = await ended(crew, handles)
        took = time.monotonic() - began
        allowed = bound(planned, {line["job"] for line in crew.lines()})
        assert faults(planned, states, crew.lines()) == []
        assert {State.COMPLETED} < set(states)
        ran = {line["side"] for line in crew.lines()}
        assert ran == {"oxcart", "node"}
        assert TIMED or crew.deaths > 0
        print(f"{JOBS} jobs in {took:.1f} s of {allowed:.1f} s, {crew.deaths} workers died")
        assert took <= allowed or not TIMED
        client = server.client()

        def is_tidy() -> bool:
            return not [
                key
                for key in client.scan_iter()
                if "~gates" in key and not key.endswith((":meta", ":marker"))
            ]

        await eventually(is_tidy, "the workers have removed all gates")
    for queue in queues.values():
        await queue.close()
