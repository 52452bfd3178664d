"""The lengths of a queue, read over a connection of their own.

A scrape must not wait behind a worker's calls, nor need the queue object's event loop: a queue of
``oxcart.sync`` has another one.

May touch: the server; reads only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oxcart.broker.bridge.broker import BridgeBroker
from oxcart.queue import LISTABLE

if TYPE_CHECKING:
    from oxcart.broker.bridge.looking import Namespace
    from oxcart.broker.port import ServedBroker
    from oxcart.engine.source import Source


class QueueLengths:
    """How many jobs a queue has in each state.

    Args:
        queue: The queue.
    """

    def __init__(self, queue: Source) -> None:
        self.name = queue.name
        self._queue = queue
        self._broker: ServedBroker | None = None

    async def counts(self) -> dict[str, int]:
        """How many jobs are in each state."""
        if self._broker is None:
            self._broker = self._queue.open_broker()
        counted = await self._broker.counts_over_lanes()
        return {state: sum(counted[key] for key in keys) for state, keys in LISTABLE.items()}

    async def monitored(self) -> tuple[str, Namespace] | None:
        """The namespace that the queue is in and how that is; None with a protocol that has none."""
        if self._broker is None:
            self._broker = self._queue.open_broker()
        if isinstance(self._broker, BridgeBroker):
            return self._broker.keys.namespace, await self._broker.namespace()
        return None

    async def unroutable(self) -> dict[str, int]:
        """How many jobs wait that no living worker can take, by what they ask for."""
        if self._broker is None:
            self._broker = self._queue.open_broker()
        return await self._broker.unroutable()

    async def skew(self) -> float:
        """Seconds that the clock of this machine is ahead of the server's; negative where it is behind."""
        if self._broker is None:
            self._broker = self._queue.open_broker()
        await self._broker.now()
        return self._broker.clock.skew_ms / 1000

    async def close(self) -> None:
        """Closes the connection."""
        if self._broker is not None:
            await self._broker.close()
