"""Maintenance of many queues: one worker per server does it, and only for queues that have jobs.

A worker of a few queues runs the maintenance loops of each. With a thousand queues and ten workers these
loops would cost the server more than its jobs. So workers of the same queues elect one for each server. It
looks every few seconds which queues have jobs, and runs the loops of these (docs/decisions/176).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from collections.abc import Callable, Hashable, Iterable, Sequence

from oxcart.broker.port import Outage, ServedBroker
from oxcart.engine.looper import Looper
from oxcart.model.errors import BrokerError

#: Queues of one server up to which a worker runs the loops of each.
FEW = 4
#: Terms of a duty in the silence after which the server would count as having been away.
TERMS = 3
#: Seconds between two looks at which queues have something to maintain.
LOOK = 5.0
#: Looks that must find nothing before the loops of a queue end.
QUIET = 2

#: Starts loops, and returns their tasks.
Start = Callable[[Iterable[Looper]], list[asyncio.Task[None]]]


def group_of(brokers: Sequence[ServedBroker], settings: str) -> str:
    """Names the workers that elect one among them: those with the same queues and settings."""
    names = "\n".join(sorted(broker.queue for broker in brokers))
    return hashlib.sha256(f"{settings}\n{names}".encode()).hexdigest()[:16]


class Duty(Looper):
    """A worker's part in the maintenance of its queues on one server.

    Args:
        brokers: The queues.
        settings: What the loops of other workers must have in common to stand in for each other.
        worker_id: The worker's id.
        outage: When the server counts as having been away.
        loops_of: Makes the loops of a queue, and whether it is for the first time.
        start: Starts them.

    Attributes:
        is_on: Whether this worker maintains the queues.
        busy: The queues whose loops run.
    """

    name = "election for maintenance"

    def __init__(
        self,
        brokers: Sequence[ServedBroker],
        settings: str,
        worker_id: str,
        outage: Outage,
        loops_of: Callable[[ServedBroker, bool], list[Looper]],
        start: Start,
    ) -> None:
        super().__init__(f"{brokers[0].queue} and {len(brokers) - 1} others")
        self._brokers = brokers
        self._group = group_of(brokers, settings)
        self._worker_id = worker_id
        self._loops_of = loops_of
        self._begin = start
        self._life = outage.silence_ms / TERMS
        self.interval = self._life / TERMS / 1000
        self._look_at = 0.0
        self._running: dict[int, list[asyncio.Task[None]]] = {}
        self._quiet: dict[int, int] = {}
        self._seen: set[int] = set()
        self.is_on = False

    @property
    def busy(self) -> list[str]:
        """The queues whose loops run."""
        return [self._brokers[index].queue for index in self._running]

    async def tick(self) -> float | None:
        """Keeps or takes the duty; on duty, starts and ends the loops of queues."""
        left_ms = await self._elect()
        self.is_on = left_ms == 0
        if not self.is_on:
            self._end(list(self._running))
            self._look_at = 0.0
            return max(0.01, left_ms / 1000) + self.interval * random.random()
        now = asyncio.get_running_loop().time()
        if now >= self._look_at:
            await self._look()
            self._look_at = now + LOOK
        return None

    async def close(self) -> None:
        """Ends the loops that run."""
        running = [task for tasks in self._running.values() for task in tasks]
        self._end(list(self._running))
        if running:
            await asyncio.wait(running)

    async def _elect(self) -> int:
        """Takes or keeps the duty; returns 0, or the ms until another worker may.

        The partitions of a queue on a cluster are on several masters: if the first is away, the next decides.
        """
        sites = {
            broker.site: broker for broker in sorted(self._brokers, key=lambda one: one.queue, reverse=True)
        }
        *others, last = reversed(sites.values())
        for broker in others:
            with contextlib.suppress(BrokerError, TimeoutError):
                async with asyncio.timeout(self._life / TERMS / 1000):
                    return await broker.take_duty(self._group, self._worker_id, round(self._life))
        return await last.take_duty(self._group, self._worker_id, round(self._life))

    async def _with_work(self) -> set[int]:
        """Returns the indexes of queues that have jobs; those of a server that is away count too."""
        sites: dict[Hashable, list[int]] = {}
        for index, broker in enumerate(self._brokers):
            sites.setdefault(broker.site, []).append(index)

        async def ask(indexes: list[int]) -> list[int]:
            here = [self._brokers[index] for index in indexes]
            if len(sites) == 1:
                return [indexes[place] for place in await here[0].with_work(here)]
            try:
                async with asyncio.timeout(LOOK):
                    return [indexes[place] for place in await here[0].with_work(here)]
            except (BrokerError, TimeoutError):
                return indexes

        return {index for found in await asyncio.gather(*map(ask, sites.values())) for index in found}

    async def _look(self) -> None:
        found = await self._with_work()
        for index in found:
            self._quiet[index] = 0
            if index not in self._running:
                loops = self._loops_of(self._brokers[index], index not in self._seen)
                self._running[index] = self._begin(loops)
                self._seen.add(index)
        for index in self._running.keys() - found:
            self._quiet[index] += 1
            if self._quiet[index] >= QUIET:
                self._end([index])

    def _end(self, indexes: Iterable[int]) -> None:
        for index in indexes:
            for task in self._running.pop(index):
                task.cancel()
