"""A producer and workers that continue while a master is killed, and a record of what its replica had.

Offsets show what was replicated. After the reply to an add, the producer reads the master's offset; once the
replica has applied that offset, it has the job. Every job of the replica must run, however the master ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import redis

from oxcart import Queue, RunningJob, Worker
from oxcart.model.errors import BrokerError
from tests.signals import eventually

LIMIT = 60.0


class Losses:
    """Load on one queue, whose master has a replica.

    Args:
        queue: The queue.
        master: A plain client of its master.
        replica: A plain client of that master's replica.
        take: Seconds that a job takes.
    """

    def __init__(self, queue: Queue, master: Any, replica: Any, take: float = 0.005) -> None:
        self.queue = queue
        self._master = master
        self._replica = replica
        self._take = take
        self.acknowledged: list[str] = []
        self.refused: list[BrokerError] = []
        self.kept: set[str] = set()
        self.ran: Counter[str] = Counter()
        self.longest_gap = 0.0
        self._last_end = 0.0
        self._producing = True
        self._watching = True
        queue.fallback(self._handle)

    async def _handle(self, job: RunningJob) -> str:
        await asyncio.sleep(self._take)
        self.ran[job.id] += 1
        now = time.monotonic()
        if self._last_end:
            self.longest_gap = max(self.longest_gap, now - self._last_end)
        self._last_end = now
        return "done"

    async def _produce(self) -> None:
        count = 0
        while self._producing:
            count += 1
            try:
                handle = await self.queue.add("job", count, priority=count % 2, delay=0.05 * (count % 3 == 0))
            except BrokerError as error:
                self.refused.append(error)
                continue
            self.acknowledged.append(handle.id)
            await asyncio.sleep(0.002)

    async def _watch(self) -> None:
        """Records which acknowledged adds the replica has, while the master lives."""
        with contextlib.suppress(redis.RedisError):
            while self._watching:
                known = list(self.acknowledged)
                offset = (await asyncio.to_thread(self._master.info, "replication"))["master_repl_offset"]
                while self._watching:
                    facts = await asyncio.to_thread(self._replica.info, "replication")
                    if facts["role"] != "slave":
                        return
                    if facts["slave_repl_offset"] >= offset:
                        self.kept.update(known)
                        break
                    await asyncio.sleep(0.005)
                await asyncio.sleep(0.02)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs two workers and four producers, then the remaining jobs."""
        workers = [Worker(self.queue, concurrency=10, lock_duration=5, stalled_interval=1) for _ in range(2)]
        async with workers[0].running(), workers[1].running():
            tasks = [asyncio.create_task(self._produce()) for _ in range(4)]
            tasks.append(asyncio.create_task(self._watch()))
            try:
                yield
            finally:
                self._producing = self._watching = False
                await asyncio.gather(*tasks)
            await eventually(self._is_done, "everything that is left was worked off", 3 * LIMIT)

    async def goes_on(self, limit: float = LIMIT) -> None:
        """Waits until new jobs are added and have run."""
        before = len(self.acknowledged)
        await eventually(lambda: len(self.acknowledged) > before + 20, "adds go on", limit)
        new = self.acknowledged[before + 1 : before + 20]
        await eventually(lambda: sum(self.ran[one] > 0 for one in new) > 10, "and run", limit)

    async def replicated(self) -> None:
        """Waits until the replica is known to have some of the jobs."""
        before = len(self.kept)
        await eventually(lambda: len(self.kept) > before + 50, "the replica has jobs")

    async def judge(self) -> None:
        """No job that the replica had is lost; other jobs may be."""
        assert self.kept
        lost = [one for one in self.acknowledged if not self.ran[one]]
        assert not self.kept.intersection(lost), "a replicated job was lost"
        assert not self.refused, self.refused[:3]
        doubled = sum(count > 1 for count in self.ran.values())
        print(
            f"{len(self.acknowledged)} added, {len(self.kept)} known to be replicated, {len(lost)} lost, "
            f"{doubled} run twice, longest pause {self.longest_gap:.1f} s"
        )
        counts = {state: count for state, count in (await self.queue.counts()).items() if count}
        assert set(counts) <= {"completed"}, counts
        await self.queue.close()

    async def _is_done(self) -> bool:
        counts = await self.queue.counts()
        return not sum(count for state, count in counts.items() if state not in ("completed", "failed"))
