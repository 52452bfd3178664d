"""A job that kills its worker becomes a dead letter, and none of the jobs that ran beside it does."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter

import pytest

from oxcart import Queue
from tests.chaos.fleet import Fleet, Store, WorkerProcess
from tests.chaos.lengths import LEASE, LIMIT
from tests.servers import ValkeyServer

CONCURRENCY = 16
INNOCENT = 60
NAP = 0.2
#: Seconds within which a dead worker's jobs are recovered: their leases end, and a check finds that.
RECOVERY = 3 * LEASE


class Supervised:
    """Workers that are replaced when they die, as a supervisor would."""

    def __init__(self, fleet: Fleet, count: int) -> None:
        self._fleet = fleet
        self.workers: list[WorkerProcess] = []
        self._living = [self._launch() for _ in range(count)]

    def _launch(self) -> WorkerProcess:
        worker = self._fleet.launch(concurrency=CONCURRENCY)
        self.workers.append(worker)
        return worker

    def replace(self) -> int:
        """Replaces the dead; returns how many workers have died so far."""
        self._living = [one if one.process.poll() is None else self._launch() for one in self._living]
        return len(self.workers) - len(self._living)

    async def until(self, store: Store, wanted: dict[str, int], limit: float) -> int:
        """Keeps the workers going until the jobs are in these states; returns how many workers died."""
        end = time.monotonic() + limit
        while store.lengths() != wanted:
            assert time.monotonic() < end, store.lengths()
            self.replace()
            await asyncio.sleep(0.05)
        return self.replace()


def _alone(workers: list[WorkerProcess]) -> Counter[str]:
    """How often each job ran alone, by the log lines of the workers."""
    lines = [line for worker in workers for line in worker.log.splitlines() if " runs alone" in line]
    return Counter(line.partition(" job ")[2].partition(" ")[0] for line in lines)


@pytest.mark.parametrize("seed", range(2))
async def test_only_the_guilty_job_becomes_a_dead_letter(
    server: ValkeyServer, store: Store, fleet: Fleet, seed: int
) -> None:
    dice = random.Random(seed)
    guilty = {f"guilty-{n}" for n in range(1 + seed % 2)}
    innocent = {f"innocent-{n}" for n in range(INNOCENT)}
    names = sorted(guilty | innocent)
    dice.shuffle(names)
    async with Queue("chaos", url=server.url) as queue:
        for name in names:
            kind, seconds = ("abort", NAP / 2) if name in guilty else ("nap", NAP)
            await queue.add(kind, {"seconds": seconds}, job_id=name, attempts=3)
        supervised = Supervised(fleet, 1 + seed % 2)
        limit = LIMIT + 3 * len(guilty) * RECOVERY
        deaths = await supervised.until(store, {"completed": INNOCENT, "failed": len(guilty)}, limit)
        failed = await queue.jobs.list("failed")
    assert {job.id for job in failed} == guilty
    assert {job.failed_reason for job in failed} == {"job stalled more than allowable limit"}
    # Lost beside others, lost beside few suspects, lost alone; two guilty jobs may die in one worker.
    assert deaths <= 3 * len(guilty)
    used = {name: int(store.job(name).get("stc", 0)) for name in innocent}
    assert max(used.values()) <= 1, "an innocent job uses one attempt at most"
    assert sum(used.values()) <= 2 * len(guilty) * (CONCURRENCY - 1)
    # A job runs alone only after it ran as one of few suspects in a worker that died.
    alone = _alone(supervised.workers)
    assert set(alone) >= guilty
    assert len(alone) <= 2 * len(guilty) * math.isqrt(CONCURRENCY)
    assert all(fleet.starts()[name] <= 1 + 2 * len(guilty) for name in innocent)


async def test_jobs_of_killed_workers_do_not_run_one_by_one(
    server: ValkeyServer, store: Store, fleet: Fleet
) -> None:
    """A deployment by SIGKILL makes every running job a suspect, but runs none of them alone."""
    async with Queue("chaos", url=server.url) as queue:
        victim = await fleet.start(concurrency=CONCURRENCY)
        handles = [await queue.add("nap", {"seconds": 3600}, attempts=3) for _ in range(CONCURRENCY)]
        lost = [handle.id for handle in handles]
        await _until(lambda: len(fleet.starts()) == CONCURRENCY)
        for handle in handles:
            await handle.update_data({"seconds": NAP})
        victim.kill()
        fresh = [f"fresh-{n}" for n in range(10 * CONCURRENCY)]
        await queue.add_many([("nap", {"seconds": NAP}) for _ in fresh])
        supervised = Supervised(fleet, 1)
        deaths = await supervised.until(store, {"completed": len(lost) + len(fresh)}, 4 * LEASE + LIMIT)
    assert deaths == 0
    assert not _alone(supervised.workers)
    assert all(int(store.job(name)["stc"]) == 1 for name in lost)
    together = _most_at_once(fleet, set(lost), since=2)
    assert 1 < together <= math.isqrt(CONCURRENCY)


async def _until(condition: object) -> None:
    end = time.monotonic() + LIMIT
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def _most_at_once(fleet: Fleet, names: set[str], *, since: int) -> int:
    """How many of these jobs ran at the same time at most, from a start of this number on."""
    steps = [
        (line["at"], 1) for line in fleet.facts("start") if line["id"] in names and line["fencing"] >= since
    ]
    steps += [
        (line["at"], -1) for line in fleet.facts("end") if line["id"] in names and line["fencing"] >= since
    ]
    most = now = 0
    for _, step in sorted(steps):
        now += step
        most = max(most, now)
    return most
