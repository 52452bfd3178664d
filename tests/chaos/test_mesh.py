"""Fifty workers of random abilities in five processes, jobs of random targets, workers killed and joining.

Every job that some worker can take runs, only on workers that fit it, and never twice at once. A job that no
worker can take waits and is reported as unroutable. `make mesh` does it with 20 000 jobs.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from oxcart import Queue
from oxcart.model.target import Abilities, Target
from tests.chaos.fleet import eventually
from tests.chaos.lengths import LIMIT
from tests.servers import ValkeyServer

JOBS = int(os.environ.get("OXCART_MESH_JOBS", "2000"))
PROCESSES, WORKERS, KILLS = 5, 10, 4
#: Seconds that a lease lasts here: long enough that none runs out on a busy machine with all these processes.
LEASE = 8.0

STACKS, CAPABILITIES, REGIONS = "pn", "abcdef", "wxyz"


class Crew:
    """Worker processes, their abilities, and the record file that they share."""

    def __init__(self, url: str, folder: Path, dice: random.Random) -> None:
        self._url = url
        self._folder = folder
        self._dice = dice
        self._journal = folder / "journal"
        self._journal.touch()
        self._file = self._journal.open("rb")
        self._rest = b""
        self._entries: dict[str, list[dict[str, Any]]] = {}
        self._made = 0
        self.living: list[subprocess.Popen[bytes]] = []
        self.abilities: dict[int, list[Abilities]] = {}
        #: When a process was killed, by its pid.
        self.killed: dict[int, float] = {}

    def start(self) -> None:
        workers = []
        for _ in range(WORKERS):
            self._made += 1
            workers.append(
                {
                    "server": f"w{self._made}",
                    "stack": self._dice.sample(STACKS, 1),
                    "capabilities": self._dice.sample(CAPABILITIES, self._dice.randint(0, 4)),
                    "region": self._dice.sample(REGIONS, 1),
                }
            )
        settings = {"url": self._url, "journal": str(self._journal), "lease": LEASE, "workers": workers}
        log = (self._folder / f"crew-{self._made}.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.mesh_program", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=Path(__file__).parents[2],
        )
        log.close()
        self.living.append(process)
        self.abilities[process.pid] = [Abilities.read(one) for one in workers]

    def kill(self) -> None:
        process = self.living.pop(self._dice.randrange(len(self.living)))
        process.kill()
        process.wait()
        self.killed[process.pid] = time.time()

    def close(self) -> None:
        for process in self.living:
            process.kill()
            process.wait()
        self._file.close()

    def lines(self, what: str) -> list[dict[str, Any]]:
        """Returns the lines of this kind so far."""
        whole, _, self._rest = (self._rest + self._file.read()).rpartition(b"\n")
        for line in whole.splitlines():
            entry = json.loads(line)
            self._entries.setdefault(entry["what"], []).append(entry)
        return self._entries.get(what, [])

    async def all_ready(self) -> None:
        def are_ready() -> bool:
            ready = {line["pid"] for line in self.lines("ready")}
            return all(process.pid in ready for process in self.living)

        await eventually(are_ready, "all have started", 120)

    async def begun(self, jobs: int) -> None:
        await eventually(lambda: len(self.lines("start")) >= jobs, f"{jobs} have begun", 120)

    def can(self, target: Target) -> bool:
        return any(target.matches(one) for process in self.living for one in self.abilities[process.pid])


def random_target(dice: random.Random, servers: int) -> Target | None:
    kind = dice.random()
    if kind < 0.2:
        return None
    if kind < 0.25:
        return Target(server=f"w{dice.randint(1, servers)}")
    asked = {
        "stack": dice.sample(STACKS, dice.choice((0, 0, 1))),
        "capabilities": dice.sample(CAPABILITIES, dice.choice((0, 1, 1, 2))),
        "region": dice.sample(REGIONS, dice.choice((0, 0, 1, 2))),
    }
    return Target(**asked, mode=dice.choice(("all", "any"))) or None  # type: ignore[arg-type]


@pytest.fixture
def crew(tmp_path: Path, url: str) -> Iterator[Crew]:
    made = Crew(url, tmp_path, random.Random(7))
    yield made
    made.close()


@pytest.mark.timeout(60 + JOBS / 20 + 10 * LIMIT)
async def test_every_job_runs_where_it_fits_and_never_twice_at_once(
    crew: Crew, valkey: ValkeyServer, url: str
) -> None:
    dice = random.Random(11)
    targets: dict[str, Target | None] = {}
    async with Queue("mesh", url=url, attempts=100, add_timeout=600) as queue:
        for _ in range(PROCESSES):
            crew.start()
        await crew.all_ready()
        last = PROCESSES * WORKERS + KILLS * WORKERS
        per_round = JOBS // (KILLS + 1)
        for turn in range(KILLS + 1):
            rows = []
            for number in range(per_round):
                job_id = f"j{turn}-{number}"
                targets[job_id] = random_target(dice, last)
                data = {"seconds": dice.random() * 0.02}
                rows.append(("n", data, {"job_id": job_id, "target": targets[job_id]}))
            handles = await queue.add_many(rows)
            assert all(handle.created for handle in handles)
            if turn < KILLS:
                await crew.begun(per_round * (turn + 1) // 2)
                crew.kill()
                crew.start()
        await crew.all_ready()

        def is_lost(job_id: str) -> bool:
            asked = targets[job_id]
            return asked is not None and not crew.can(asked)

        routable = {job_id for job_id in targets if not is_lost(job_id)}
        done: set[str] = set()

        async def all_done() -> bool:
            done.update(line["id"] for line in crew.lines("end"))
            return routable <= done

        end = time.monotonic() + 60 + JOBS / 20
        while not await all_done():
            left = sorted(routable - done)
            assert time.monotonic() < end, f"{len(left)} have not run: {left[:5]}"
            await asyncio.sleep(0.2)

        counts: dict[str, int] = {}

        async def is_quiet() -> bool:
            counts.update(await queue.counts())
            return not counts["active"] and not counts["failed"]

        while not await is_quiet():
            assert time.monotonic() < end + 30, counts
            await asyncio.sleep(0.2)
        # Jobs of a killed worker become unroutable when its record expires, 30 s after its last heartbeat.
        # A job that was lost with its worker after its end may wait once more meanwhile.
        unroutable: dict[str, int] = {}
        waiting = -1
        end = time.monotonic() + 60
        while sum(unroutable.values()) != waiting or not await is_quiet():
            assert time.monotonic() < end, (sum(unroutable.values()), counts, unroutable)
            await asyncio.sleep(0.2)
            unroutable = await queue.workers.unroutable()
            counts.update(await queue.counts())
            waiting = sum(counts[state] for state in ("waiting", "prioritized", "delayed"))
        if counts["completed"] + waiting != len(targets):
            print("states", Counter([await queue.jobs.state(job_id) for job_id in targets]), counts)
        assert counts["completed"] + waiting == len(targets)

    can = {line["worker"]: Abilities(**line["abilities"]) for line in crew.lines("worker")}
    for line in crew.lines("start"):
        asked = targets[line["id"]]
        assert asked is None or asked.matches(can[line["worker"]]), line
    check_one_at_a_time(crew)


def check_one_at_a_time(crew: Crew) -> None:
    """Checks that the previous run of a job ended, or its process was killed, before the next start."""
    ends = {(line["id"], line["fencing"]): line["at"] for line in crew.lines("end")}
    starts: dict[str, list[dict[str, Any]]] = {}
    for line in crew.lines("start"):
        starts.setdefault(line["id"], []).append(line)
    for job_id, lines in starts.items():
        lines.sort(key=lambda line: int(line["fencing"]))
        for before, after in pairwise(lines):
            over = ends.get((job_id, before["fencing"]), crew.killed.get(before["pid"]))
            assert over is not None, f"{job_id} was started again while it ran: {before} {after}"
            assert over <= after["at"], f"{job_id} ran twice at once: {before}, over at {over}, {after}"
