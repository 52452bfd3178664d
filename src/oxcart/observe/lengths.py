"""Reads the lengths of a queue over a separate connection.

A scrape must not wait behind a worker's calls, nor need the queue object's event loop: a queue of
``oxcart.sync`` has another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oxcart.jobs import LISTABLE

if TYPE_CHECKING:
    from oxcart.broker.port import ServedBroker
    from oxcart.broker.port.results import NamespaceStats
    from oxcart.engine.source import Consumable


class QueueLengths:
    """How many jobs a queue has in each state.

    Args:
        queue: The queue.
    """

    def __init__(self, queue: Consumable) -> None:
        self._source = queue._core
        self.name = self._source.name
        self._broker: ServedBroker | None = None

    async def counts(self) -> dict[str, int]:
        """Returns how many jobs are in each state."""
        if self._broker is None:
            self._broker = self._source.open_broker()
        counted = await self._broker.counts_over_lanes()
        return {state: sum(counted[key] for key in keys) for state, keys in LISTABLE.items()}

    async def monitored(self) -> tuple[str, NamespaceStats] | None:
        """Reads the statistics of the queue's namespace, with its name; None without a namespace."""
        if self._broker is None:
            self._broker = self._source.open_broker()
        namespace = self._broker.namespace
        return None if namespace is None else (namespace.name, await namespace.stats())

    async def unroutable(self) -> dict[str, int]:
        """Returns how many jobs wait that no living worker can take, by their targets."""
        if self._broker is None:
            self._broker = self._source.open_broker()
        return await self._broker.unroutable()

    async def oldest(self) -> float:
        """Returns for how many seconds the oldest ready job has been ready; 0 without one."""
        if self._broker is None:
            self._broker = self._source.open_broker()
        broker = self._broker
        now, ages = await broker.now() / 1000, [0.0]
        for place in ("wait", "paused", "prioritized"):
            for job in await broker.page(place, 0, 0, oldest=True):
                ages.append(now - (job.scheduled_at or job.created_at).timestamp())
        return max(ages)

    async def skew(self) -> float:
        """Returns the seconds that this machine's clock is ahead of the server's, or below zero."""
        if self._broker is None:
            self._broker = self._source.open_broker()
        await self._broker.now()
        return self._broker.clock.skew_ms / 1000

    async def close(self) -> None:
        """Closes the connection."""
        if self._broker is not None:
            await self._broker.close()
