"""``queue.partitions``: the partitions of a queue that was made with ``partitions=``.

    events = Queue("events", partitions=16)
    await events.partitions.resize(32)
    for row in await events.partitions.counts(): print(row)

A partition is a queue: ``Queue("events#3")`` is the fourth (docs/partitions.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oxcart.broker.port import parts
from oxcart.jobs import LISTABLE
from oxcart.model.partitions import Layout

if TYPE_CHECKING:
    from oxcart.queue import Queue

__all__ = ["Layout", "Partitions"]


class Partitions:
    """The partitions of a queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def layout(self) -> Layout:
        """Returns the layout as it is stored now.

        Raises:
            NotSupported: The queue has no partitions.
        """
        return await self._store.refresh()

    async def names(self) -> list[str]:
        """Returns the names of the partitions that may have jobs; each is a queue."""
        await self._store.refresh()
        return [one.queue for one in self._store.brokers()]

    async def counts(self) -> list[dict[str, int]]:
        """Returns how many jobs are in each state, by the number of the partition."""
        await self._store.refresh()
        rows = [await one.counts_over_lanes() for one in self._store.brokers()]
        return [{state: sum(row[key] for key in keys) for state, keys in LISTABLE.items()} for row in rows]

    async def resize(self, size: int) -> Layout:
        """Lets new jobs go to another number of partitions; returns the new layout.

        No job moves. Workers take further partitions in while they run, and consume the partitions that get
        no new jobs until these are empty.

        Args:
            size: The number of partitions.

        Raises:
            ValidationError: The number is out of its bounds, or a limit of the queue is lower than the number
                of partitions that are consumed; nothing has changed.
            BrokerError: Partition 0 could not be reached; nothing has changed.
        """
        return await self._store.resize(size)

    async def retire(self) -> Layout:
        """Gives up the partitions that get no new jobs; returns the new layout.

        Workers do so by themselves an hour after the last resize. Sooner, make sure that no producer still
        adds by the old layout.

        Raises:
            PartitionNotEmpty: One of them has jobs or schedules, ended jobs included; nothing has changed.
        """
        return await self._store.retire()

    @property
    def _store(self) -> parts.Partitions:
        core = self._queue._core
        return core.part(core.broker.partitions, "partitions")
