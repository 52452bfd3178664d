"""Releases dependents: jobs that wait behind the gates of jobs that have ended.

A worker of ours that finishes a job releases its dependents in the same call, up to a bound. The rest, and
dependents of jobs that a peer's worker finished, are released here. ``lua/parts/gates.lua`` and
docs/decisions/42 describe gates and their keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from oxcart.broker.bullmq.scripts import load
from oxcart.broker.port.parts import GateListener, Gates
from oxcart.broker.replies import texts
from oxcart.broker.waiting import BlockingPop

if TYPE_CHECKING:
    from oxcart.broker.bullmq.broker import BullMQBroker

#: Dependents that one call releases at most: about 3 ms of the server's time.
ROOM = 250
#: Waiting gates that one call checks for jobs that have ended without opening them.
STEP = 100
#: Ticks between two such checks.
LOOK_EVERY = 5


class GateKeeper(Gates):
    """Settles the gates behind which jobs of a queue wait.

    Attributes:
        hidden: The key prefixes of the hidden queues that were known at the last check.
    """

    def __init__(self, broker: BullMQBroker) -> None:
        self._broker = broker
        self._looked: dict[str, int] = {}
        self._ticks = 0
        self.hidden: tuple[str, ...] = ()

    async def tick(self) -> int:
        """Looks for gates and settles those whose jobs have ended; returns how many jobs were released."""
        found = await self._broker.caller.command("SMEMBERS", self._broker.keys.gates())
        self.hidden = tuple(sorted(texts(found)))
        look = STEP if self._ticks % LOOK_EVERY == 0 else 0
        self._ticks += 1
        return sum([await self.settle(hidden, look=look) for hidden in self.hidden])

    async def settle(self, hidden: str, *, look: int = 0) -> int:
        """Settles the gates of one hidden queue; returns how many jobs were released.

        Args:
            hidden: The prefix of its keys.
            look: How many waiting gates to check as well, from where the last check ended.
        """
        broker = self._broker
        released = 0
        while True:
            args = (broker.clock.argument, hidden, ROOM, self._looked.get(hidden, 0), look)
            step: int
            step, left, at = await broker.caller.again(load("settle"), broker.keys.meta(), *args)
            released += step
            if look:
                self._looked[hidden] = at
            if not left or not step:
                return released
            look = 0

    def open_listener(self, gates: Sequence[Gates]) -> MarkerListener:
        """Opens a listener for the gates of some queues of this site."""
        return MarkerListener(self._broker, [one for one in gates if isinstance(one, GateKeeper)])

    async def repair(self) -> int:
        """Restores the gates of waiting jobs that lost them; returns how many dependencies it repaired."""
        broker, mended, at = self._broker, 0, 0
        done: int
        while True:
            args = (broker.clock.argument, at, STEP)
            done, at = await broker.caller.again(load("repair"), broker.keys.meta(), *args)
            mended += done
            if not at:
                return mended


class MarkerListener(GateListener):
    """Settles gates as soon as the markers of their hidden queues appear.

    It has a connection of its own, so that a worker that is paused or has no free slot settles too. The
    connection opens only if there are gates.

    Args:
        broker: One of the queues.
        keepers: The gate keepers of all of them; in one slot on a cluster.
    """

    def __init__(self, broker: BullMQBroker, keepers: Sequence[GateKeeper]) -> None:
        self._keepers = keepers
        self._pop = BlockingPop(broker.server, broker.slot)

    async def settle_for(self, seconds: float) -> None:
        """Settles gates for so many seconds: all of them first, then each that opens meanwhile."""
        loop = asyncio.get_running_loop()
        for keeper in self._keepers:
            await keeper.tick()
        end = loop.time() + seconds
        markers = {
            f"{hidden}:marker".encode(): (one, hidden) for one in self._keepers for hidden in one.hidden
        }
        if not markers:
            await asyncio.sleep(seconds)
            return
        await self._pop.connect()
        while (left := end - loop.time()) > 0.001:
            popped = await self._pop.pop(markers, left)
            if popped is None:
                return
            keeper, hidden = markers[popped.key]
            await keeper.settle(hidden)

    async def close(self) -> None:
        """Closes the connection."""
        await self._pop.close()
