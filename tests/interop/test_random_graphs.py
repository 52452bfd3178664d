"""Random graphs over queues of ours, of Node's and of both end as the table says, whoever is killed.

`OXCART_GRAPH=1000` sets how many jobs a graph has, `OXCART_SEED` which one it is.
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

pytestmark = [pytest.mark.node]

JOBS = int(os.environ.get("OXCART_GRAPH", "100"))
SEED = int(os.environ.get("OXCART_SEED", "5"))
LIMIT = 60 + JOBS / 5
ROOT = Path(__file__).parents[2]
#: Who works on which queue.
QUEUES = {"ours": ("oxcart",), "theirs": ("node",), "both": ("oxcart", "node")}

#: What a job does: its steps, how many attempts it has, and how it ends if it may run.
OUTCOMES: dict[str, tuple[list[str], int, State]] = {
    "fine": (["ok"], 3, State.COMPLETED),
    "again": (["fail", "ok"], 3, State.COMPLETED),
    "bad": (["bad"], 3, State.FAILED),
    "dead": (["fail"], 1, State.DEAD_LETTER),
    "dies": (["die", "ok"], 3, State.COMPLETED),
    "cancelled": (["ok"], 3, State.CANCELLED),
}


class Planned:
    """A job of the plan: what it does, and what it waits for."""

    def __init__(self, job: GraphJob, what: str, after: list[int], after_any: list[int]) -> None:
        self.job = job
        self.what = what
        self.after = after
        self.after_any = after_any


def plan(graph: Graph, queues: dict[str, Queue], rng: random.Random, jobs: int) -> list[Planned]:
    made: list[Planned] = []
    for number in range(jobs):
        place = rng.choice(list(queues))
        kinds = ["fine"] * 14 + ["again"] * 2 + ["bad", "dead"]
        kinds += ["dies"] if place == "ours" else []
        others = rng.sample(range(max(0, number - 30), number), min(number, rng.choice([0, 1, 1, 2, 2, 3])))
        kinds += ["cancelled"] if not others else []
        what = rng.choice(kinds)
        steps, attempts, _ = OUTCOMES[what]
        split = rng.randint(0, len(others)) if rng.random() < 0.3 else len(others)
        after, after_any = others[:split], others[split:]
        data = {"row": number, "take": rng.randint(1, 8), "steps": [*steps, *steps[-1:] * 20]}
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
        made.append(Planned(job, what, after, after_any))
    return made


class Crew:
    """The worker processes; those of ours are started again when they die."""

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
        told: dict[str, Any] = {
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
            command, told["folder"] = ["node", str(NODE_FOLDER / "crew.js")], str(installed("v5"))
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [*command, json.dumps(told)], cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log
            )

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


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    missing = node_missing()
    if missing is not None:
        pytest.skip(missing)
    with ValkeyServer() as server:
        yield server


async def ended(crew: Crew, handles: list[JobHandle[Any]]) -> list[State]:
    end = time.monotonic() + LIMIT
    while True:
        states = [(await handle.get()).state for handle in handles]
        if all(state in TERMINAL for state in states):
            return [state for state in states if state is not None]
        left = [f"{one.queue.name}/{one.id} {state}" for one, state in zip(handles, states, strict=True)]
        assert time.monotonic() < end, (
            f"not ended: {[one for one in left if 'complet' not in one]}\n{crew.logs()}"
        )
        crew.mend()
        await asyncio.sleep(0.1)


def faults(planned: list[Planned], states: list[State], lines: list[dict[str, Any]]) -> list[str]:
    """Where an end, a run or an order is not what the table says of it."""
    found: list[str] = []
    began: dict[str, int] = {}
    done: dict[str, int] = {}
    for place, line in enumerate(lines):
        if line["what"] == "began":
            began.setdefault(line["job"], place)
        else:
            done[line["job"]] = place
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
async def test_a_random_graph_ends_as_the_table_says(server: ValkeyServer, tmp_path: Path) -> None:
    queues = {name: Queue(name, url=server.url) for name in QUEUES}
    graph = Graph(queues["ours"])
    planned = plan(graph, queues, random.Random(SEED), JOBS)
    with Crew(server.url, tmp_path) as crew:
        handles = await graph.add()
        for one, handle in zip(planned, handles, strict=True):
            if one.what == "cancelled":
                await handle.cancel()
        states = await ended(crew, handles)
        assert faults(planned, states, crew.lines()) == []
        assert set(states) == TERMINAL
        ran = {line["side"] for line in crew.lines()}
        assert ran == {"oxcart", "node"}
        if any(one.what == "dies" and states[n] == "completed" for n, one in enumerate(planned)):
            assert crew.deaths > 0
        print(f"{JOBS} jobs, {crew.deaths} workers died")
    client = server.client()
    left = [key for key in client.scan_iter() if "~gates" in key and not key.endswith((":meta", ":marker"))]
    assert left == []
    for queue in queues.values():
        await queue.close()
