"""A run of a mixed fleet: start all processes, add all jobs, kill workers meanwhile, check the end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.proxy import Call, Proxy
from tests.interop.mixed.checks import Store, faults
from tests.interop.mixed.crews import Crews
from tests.interop.mixed.plan import QUEUES, make_plan
from tests.interop.mixed.producers import produce
from tests.servers import ValkeyServer
from tests.signals import eventually

PEERS = ("node5-1", "node6-1", "pypi-1")
OURS = ("oxcart-1", "oxcart-2")


@dataclass
class Result:
    """The result of a run."""

    jobs: int
    seconds: float
    kills: int
    cuts: int
    runs: Counter[str]
    stalled: int
    faults: list[str]

    def __str__(self) -> str:
        runs = ", ".join(f"{side} {count}" for side, count in sorted(self.runs.items()))
        lines = [
            f"{self.jobs} jobs in {self.seconds:.1f} s",
            f"{self.kills} workers killed, {self.cuts} answers lost, {self.stalled} stalls",
            f"runs: {runs}",
            f"faults: {len(self.faults)}",
            *(f"  {one}" for one in self.faults[:50]),
        ]
        return "\n".join(lines)


async def run(
    folder: Path,
    jobs: int,
    *,
    seed: int = 562,
    kills: int = 3,
    cuts: int = 0,
    lease: int = 5_000,
    without_us: bool = False,
) -> Result:
    """One run.

    Args:
        folder: Where diaries and logs are kept.
        jobs: Approximate number of jobs.
        seed: Seed of the plan.
        kills: Number of killed workers over the run: ours, or those of peers with `without_us`.
        cuts: Number of replies to their scripts that are lost with the connection.
        lease: Lease of the killed workers in ms.
        without_us: Only peers run jobs. We still add our part of them.
    """
    plan = make_plan(seed, jobs)
    victims = PEERS if without_us else OURS
    losses = Losses(cuts, plan.total)
    with ValkeyServer() as server:
        proxy = Proxy(server.port)
        proxy.cut_if(losses.is_due)
        await proxy.up()
        client: Any = server.client()
        for queue in QUEUES:
            client.hset(f"bull:{queue}:meta", "opts.maxLenEvents", 100 * plan.total)
        crews = Crews(folder, server.url, proxy.url if cuts else server.url, lease, victims)
        began = time.monotonic()
        gate = Gate()
        producing = asyncio.create_task(produce(server.url, plan, gate.room))
        try:
            for name in PEERS if without_us else (*PEERS, *OURS):
                await asyncio.to_thread(crews.start, name)
            for name in crews.running:  # otherwise the first workers would run most of the jobs
                await asyncio.to_thread(crews.ready, name)
            unmet = await Watch(client, crews, losses, producing).phases(gate, kills)
            await producing
        finally:
            crews.end()
            producing.cancel()
            await asyncio.gather(producing, return_exceptions=True)
            await proxy.down()
        store = Store(client, plan)
        found = unmet + faults(store, crews)
        seconds = time.monotonic() - began
        if found:
            (folder / "faults").write_text("\n".join([*found, crews.logs()]))
        return Result(
            plan.total,
            seconds,
            len(crews.killed),
            proxy.cuts.total(),
            crews.runs(),
            store.stalled.total(),
            found,
        )


class Gate:
    """Limits the adds, so that workers are killed while jobs are added and not when all are done."""

    def __init__(self) -> None:
        self.share = 0.0

    async def room(self, share: float) -> None:
        await eventually(lambda: share < self.share, "room for more", 600)


class Losses:
    """Decides which replies are lost: the next one whenever a given number of jobs has ended."""

    def __init__(self, wanted: int, total: int) -> None:
        self.total = total
        self.ended = 0
        self._wanted = wanted
        self._done = 0

    def is_due(self, call: Call) -> bool:
        name = bytes(call.args[0]).upper()
        if name != b"EVALSHA" or self._done >= self._wanted * self.ended // self.total:
            return False
        self._done += 1
        return True


class Watch:
    """Waits until all jobs have ended, and kills workers meanwhile."""

    def __init__(self, client: Any, crews: Crews, losses: Losses, producing: asyncio.Task[None]) -> None:
        self._client = client
        self._crews = crews
        self._losses = losses
        self._total = losses.total
        self._producing = producing
        self._limit = 60 + losses.total / 50

    async def phases(self, gate: Gate, kills: int) -> list[str]:
        """Kills a worker in each phase but the last. Returns the kills that failed."""
        for turn in range(kills):
            gate.share = max(gate.share, (turn + 1) / (kills + 1))
            mark = int(self._total * (turn + 0.5) / (kills + 1))
            await self._reached(mark)
            await self._kill(self._crews.victims[turn % len(self._crews.victims)], gate)
        gate.share = 1.0
        try:
            await self._reached(self._total)
        except TimeoutError:
            left = self._total - self._ended()
            return [f"{left} of {self._total} jobs were not finished after {self._limit:.0f} s"]
        return []

    async def _kill(self, victim: str, gate: Gate) -> None:
        """Kills a worker that is running a job. If all jobs have ended meanwhile, it lets more be added."""
        async with asyncio.timeout(self._limit):
            while not await asyncio.to_thread(self._crews.kill, victim):
                gate.share += 0.002
                await asyncio.sleep(0.02)

    def _ended(self) -> int:
        places = [f"bull:{queue}:{end}" for queue in QUEUES for end in ("completed", "failed")]
        self._losses.ended = sum(self._client.zcard(place) for place in places)
        return self._losses.ended

    async def _reached(self, count: int) -> None:
        async with asyncio.timeout(self._limit):
            while self._ended() < count:
                if self._producing.done():
                    self._producing.result()
                died = self._crews.died()
                assert not died, f"{died} died by themselves:\n{self._crews.logs()}"
                await asyncio.sleep(0.02)
