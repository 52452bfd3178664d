"""Measures the cost of lanes: `make bench-mesh`.

Two figures, each of which can fail with ``--check``:

- how much longer the server works on a claim with 1 000 registered lanes, 3 of them ready, than on a claim of
  the same jobs without lanes, by its own statistics: at most 15 %;
- how soon a job starts behind 10 000 others that do not match the only worker: within 100 ms. The median
  counts, because other processes may delay a single one; the longest is printed.

    python -m benchmarks.mesh [--rounds 21] [--check]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from typing import Any

from tests.servers import ValkeyServer

from benchmarks import cores
from oxcart import Queue, RunningJob, Worker
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.connection import Server
from oxcart.broker.port import Ask
from oxcart.model.options import JobOptions
from oxcart.model.target import Abilities, Target

REGISTERED, READY = 1000, 3
DEARER, SOON = 1.15, 0.1
#: The sizes of a claim: of a busy worker and of an idle one.
BATCHES = (50, 1)
#: Parts of a round.
PARTS = 10


class Costs:
    """Two queues of the same jobs, one with lanes, and the server's time per claimed job of each."""

    def __init__(self, server: ValkeyServer) -> None:
        self._client: Any = server.client()
        self._plain = BullMQBroker(Server(server.url), "plain")
        self._mesh = BullMQBroker(Server(server.url), "mesh")
        self._ready = [f"all;c=c{number}" for number in range(READY)]
        self._turn = 0

    async def prepare(self) -> None:
        for number in range(REGISTERED):
            await self._mesh.lanes.enter(f"all;c=c{number}")

    async def close(self) -> None:
        await self._plain.close()
        await self._mesh.close()

    async def fill(self, broker: BullMQBroker, count: int) -> None:
        data = {"text": "x" * 80}
        await broker.add([broker.encode("n", data, JobOptions.build()) for _ in range(count)])

    async def round(self, batch: int, calls: int) -> list[tuple[float, float]]:
        """Claims all jobs in parts, alternately without and with lanes, and returns the time of each part."""
        # As many as wait in the lanes, because a small queue fits into the server's caches.
        await self.fill(self._plain, batch * calls * PARTS * (READY + 1))
        for lane in self._ready:
            await self.fill(self._mesh.lanes.open(lane), batch * calls * PARTS)
        await self.fill(self._mesh, batch * calls * PARTS)
        return [(await self.plain(batch, calls), await self.mesh(batch, calls)) for _ in range(PARTS)]

    async def plain(self, batch: int, calls: int) -> float:
        return await self._timed(self._plain, [()] * calls, batch)

    async def mesh(self, batch: int, calls: int) -> float:
        names = ["base", *self._ready]
        asked = []
        for _ in range(calls):
            self._turn += 1
            turn = self._turn % len(names)
            asked.append(tuple(names[turn:] + names[:turn]))
        return await self._timed(self._mesh, asked, batch)

    async def _timed(self, broker: BullMQBroker, asked: list[tuple[str, ...]], batch: int) -> float:
        self._client.config_resetstat()
        claimed = 0
        for lanes in asked:
            claimed += len((await broker.claim(Ask(batch, lanes=lanes))).jobs)
        spent: float = self._client.info("commandstats")["cmdstat_evalsha"]["usec"]
        assert claimed == batch * len(asked), (claimed, batch, len(asked))
        return spent / claimed

    def forget(self) -> None:
        """Drops the jobs of a round, not the lanes."""
        keep = {"meta", "ox:lanes", "ox:lanes:version"}
        for base in ("plain", "mesh"):
            for key in self._client.scan_iter(f"bull:{base}*", count=5000):
                if str(key).split(":", 2)[2] not in keep:
                    self._client.unlink(key)


async def measure_costs(server: ValkeyServer, rounds: int) -> dict[int, float]:
    """Returns the cost of a claim with lanes by its size: the median ratio of two parts.

    The parts follow each other, and are too short for the machine's speed to change.
    """
    costs = Costs(server)
    await costs.prepare()
    found: dict[int, float] = {}
    for batch in BATCHES:
        calls = max(2, 20 // batch)
        await costs.round(batch, calls)  # warms up
        parts: list[tuple[float, float]] = []
        for _ in range(rounds):
            costs.forget()
            parts += await costs.round(batch, calls)
        low, found[batch], high = statistics.quantiles((mesh / plain for plain, mesh in parts), n=4)
        without, with_lanes = (statistics.median(part[at] for part in parts) for at in (0, 1))
        print(
            f"claim of {batch:2d}: {without:6.1f} µs a job without lanes, "
            f"{with_lanes:6.1f} with {REGISTERED} registered and {READY} ready: "
            f"x {found[batch]:.3f} (half of {len(parts)} between {low:.2f} and {high:.2f})"
        )
    await costs.close()
    return found


async def measure_start(server: ValkeyServer, jobs: int = 10_000, times: int = 50) -> float:
    """Returns the seconds until a job starts behind many that do not match: the median of some."""
    begun: asyncio.Queue[float] = asyncio.Queue()
    async with Queue("behind", url=server.url) as queue:

        @queue.fallback
        async def run(job: RunningJob) -> None:
            begun.put_nowait(time.perf_counter())

        await queue.add_many([("n", None)] * jobs, target=Target(capabilities="other"))
        waits = []
        async with Worker(queue, abilities=Abilities(capabilities="gpu"), concurrency=10).running():
            await asyncio.sleep(1)
            for _ in range(times):
                added = time.perf_counter()
                await queue.add("n", target=Target(capabilities="gpu"))
                waits.append(await begun.get() - added)
        print(
            f"a job behind {jobs} that do not fit: starts after {statistics.median(waits) * 1000:.1f} ms, "
            f"at worst {max(waits) * 1000:.1f} ms of {times}"
        )
        return statistics.median(waits)


async def main(rounds: int, check: bool) -> int:
    with ValkeyServer() as server, cores.apart(server.pid):
        ratios = await measure_costs(server, rounds)
        usual = await measure_start(server)
    bad = [f"a claim of {batch} is x {ratio:.3f}" for batch, ratio in ratios.items() if ratio > DEARER]
    if usual > SOON:
        bad.append(f"a job started after {usual * 1000:.0f} ms")
    for line in bad:
        print("too much:", line)
    return 1 if bad and check else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--check", action="store_true", help="exit with 1 where a figure is too much")
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.rounds, given.check)))
