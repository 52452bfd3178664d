"""``queue.workers``: the workers of a queue, and the jobs that none of them can take.

    for worker in await video.workers.list():
        print(worker.name, worker.abilities)
    print(await video.workers.unroutable())

A worker is alive if its last heartbeat is at most 30 s old.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oxcart.broker.port.results import NamespaceStats
from oxcart.broker.workers import WorkerRecord
from oxcart.model.errors import ValidationError
from oxcart.model.job import Job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oxcart.queue import Queue

__all__ = ["Namespace", "NamespaceStats", "WorkerRecord", "Workers"]

#: The states of jobs that may wait for a worker that does not exist, and their places on the wire.
UNROUTABLE = {"waiting": ("wait", "paused"), "prioritized": ("prioritized",), "delayed": ("delayed",)}


class Workers:
    """The workers of a queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def list(self) -> Sequence[WorkerRecord]:
        """Returns the live workers of the queue: those with a heartbeat within the last 30 s.

        On Bridge, a worker of another client does not name its job types, so every queue lists it.
        """
        return await self._queue._core.broker.workers()

    async def unroutable(self) -> dict[str, int]:
        """Returns how many jobs wait whose target no live worker matches, by target."""
        return await self._queue._core.broker.unroutable()

    async def unroutable_jobs(
        self, state: str = "waiting", *, first: int = 0, limit: int = 100, oldest: bool = False
    ) -> Sequence[Job]:
        """Returns a page of the jobs that no live worker can take, newest first unless ``oldest``.

        Args:
            state: ``waiting``, ``prioritized`` or ``delayed``.
            first: How many to skip; where lanes are queues, of each lane.
            limit: How many at most; where lanes are queues, of each lane.
            oldest: Begin with the oldest.

        Raises:
            ValidationError: There is no such state.
        """
        if state not in UNROUTABLE:
            raise ValidationError("state", "one of " + ", ".join(UNROUTABLE), state)
        broker = self._queue._core.broker
        found: list[Job] = []
        for key in UNROUTABLE[state] if limit > 0 else ():
            found += await broker.unroutable_page(key, first, first + limit - 1, oldest=oldest)
        return found


class Namespace:
    """The Bridge namespace of a queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def stats(self) -> NamespaceStats:
        """Returns lengths, workers and running jobs over all job types of the namespace.

        Raises:
            NotSupported: The queue is on BullMQ's protocol, which has no namespaces.
        """
        core = self._queue._core
        return await core.part(core.broker.namespace, "stats").stats(every_type=True)
