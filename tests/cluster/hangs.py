"""Producers that continue while a master hangs and wakes after its failover, and a count of lost jobs.

A frozen master keeps its connections. When it wakes, it applies the calls that producers sent meanwhile, and
it replies until it learns of the new master. A job is lost if its add returned and the new master lacks it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from oxcart import Queue
from oxcart.model.errors import Unacknowledged
from tests.signals import eventually

#: Seconds between the adds of a busy producer, and between those of an idle one.
BUSY, IDLE = 0.01, 2.5


class Producers:
    """Adds jobs to one queue, on a connection per producer.

    Args:
        make: Makes a queue with a connection of its own.
        busy: How many producers add all the time.
        idle: How many producers add seldom.
    """

    def __init__(self, make: Callable[[], Queue], busy: int = 6, idle: int = 4) -> None:
        self._queues = [make() for _ in range(busy + idle)]
        self._busy = busy
        self._going = True
        self.acknowledged: list[str] = []
        self.unacknowledged: list[Unacknowledged] = []

    async def _produce(self, queue: Queue, pause: float) -> None:
        while self._going:
            try:
                handle = await queue.add("job", {"of": "producer"})
            except Unacknowledged as error:
                self.unacknowledged.append(error)
                continue
            self.acknowledged.append(handle.id)
            await asyncio.sleep(pause)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Produces during the block, and until every pending add has ended."""
        tasks = [
            asyncio.create_task(self._produce(queue, BUSY if place < self._busy else IDLE))
            for place, queue in enumerate(self._queues)
        ]
        try:
            yield
        finally:
            self._going = False
            await asyncio.gather(*tasks)

    async def goes_on(self, limit: float = 60.0) -> None:
        """Waits until new adds return."""
        before = len(self.acknowledged)
        await eventually(lambda: len(self.acknowledged) > before + 50, "adds go on", limit)

    async def lost(self, what: str) -> list[str]:
        """Returns the acknowledged jobs that the queue does not have."""
        queue = self._queues[0]
        found: list[Any] = []
        for first in range(0, len(self.acknowledged), 500):
            found += await queue.jobs.get_many(self.acknowledged[first : first + 500])
        lost = [job_id for job_id, job in zip(self.acknowledged, found, strict=True) if job is None]
        print(
            f"{what}: {len(lost)} lost of {len(self.acknowledged)} acknowledged, "
            f"{len(self.unacknowledged)} adds ended in an error"
        )
        return lost

    async def close(self) -> None:
        for queue in self._queues:
            await queue.close()
