"""Reads the lengths of a queue over a separate connection.

A scrape must not wait behind a worker's calls, nor need the queue object's event loop: a queue of
``oxcart.sync`` has another one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from oxcart.broker.sampling import sample
from oxcart.jobs import LISTABLE

if TYPE_CHECKING:
    from oxcart.broker.port import ServedBroker
    from oxcart.broker.port.parts import Partitions
    from oxcart.broker.port.results import GroupSummary, NamespaceStats
    from oxcart.engine.source import Consumable

#: A queue with more partitions than this is reported by its sums alone, so that its series stay few.
MOST_SHOWN = 64
#: Most seconds that a newer layout may take.
LAYOUT = 0.3
#: Most seconds that a partition may take: one on a server that hangs must not hide the others.
PATIENCE = 1.0


class QueueLengths:
    """How many jobs a queue has in each state.

    Args:
        queue: The queue.
    """

    def __init__(self, queue: Consumable) -> None:
        self._source = queue._core
        self.name = self._source.name
        self._broker: ServedBroker | None = None
        #: The jobs of each partition by state, by its number, as the last ``counts`` read them.
        self.partitions: dict[int, dict[str, int]] = {}

    async def counts(self) -> dict[str, int]:
        """Returns how many jobs are in each state; of a partitioned queue over all partitions.

        Raises:
            BrokerError: A server does not answer. ``partitions`` has those that do.
        """
        if self._broker is None:
            self._broker = self._source.open_broker()
        if self._broker.partitions is not None:
            return await self._summed(self._broker.partitions)
        return _states(await self._broker.counts_over_lanes())

    async def _summed(self, partitions: Partitions) -> dict[str, int]:
        self.partitions = {}
        with contextlib.suppress(TimeoutError):  # then the layout that is known must do
            async with asyncio.timeout(LAYOUT):
                await partitions.ready()
        brokers = partitions.brokers()
        answers = await asyncio.gather(*map(_counted, brokers), return_exceptions=True)
        rows = {
            number: _states(answer)
            for number, answer in enumerate(answers)
            if not isinstance(answer, BaseException)
        }
        self.partitions = rows if len(brokers) <= MOST_SHOWN else {}
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer  # a sum without one part would look like progress
        return {state: sum(row[state] for row in rows.values()) for state in LISTABLE}

    async def groups(self) -> GroupSummary | None:
        """Returns the waiting groups in a few numbers; None for a queue that has no groups."""
        if self._broker is None:
            self._broker = self._source.open_broker()
        store = self._broker.groups
        return None if store is None else await store.summary()

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
        """Returns for how many seconds the oldest ready job has been ready, with or without a target.

        0 without one. Jobs that wait for their group's turn are in ``groups``.
        """
        if self._broker is None:
            self._broker = self._source.open_broker()
        (seen,) = await sample([self._broker], [""], 1)
        return 0.0 if seen.oldest_ms is None else max(0, seen.at_ms - seen.oldest_ms) / 1000

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


async def _counted(broker: ServedBroker) -> dict[str, int]:
    async with asyncio.timeout(PATIENCE):
        return await broker.counts_over_lanes()


def _states(counted: Mapping[str, int]) -> dict[str, int]:
    return {state: sum(counted[key] for key in keys) for state, keys in LISTABLE.items()}
