"""Tells jobs what became of those that they wait for, where the worker that ended these could not.

Those that wait for a job that our worker ends are told in the same call (``lua/finish.lua``), up to a bound.
What is left, and what a peer's worker ended, is settled here: woken by the marker of the hidden queue, on a
connection of its own, so that a worker that is paused or has no free slot does it too; and at every tick. The
connection is opened only where there are gates.

May touch: the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from oxcart.broker.bullmq.graphs import GateKeeper
from oxcart.broker.connection import Reconnect, Server
from oxcart.broker.link import Link, ReplyError
from oxcart.model.errors import BrokerError

log = logging.getLogger("oxcart.gates")


class Gates:
    """The settling of one worker on one server.

    Args:
        server: Where to wait for markers.
        slot: The slot of all the queues, on a cluster.
        keepers: What settles the gates of each queue.
        reconnect: Pauses between attempts to reach a lost server.
        tick: Seconds between looks.
    """

    def __init__(
        self,
        server: Server,
        slot: int | None,
        keepers: Sequence[GateKeeper],
        *,
        reconnect: Reconnect,
        tick: float = 1.0,
    ) -> None:
        self._server = server
        self._slot = slot
        self._keepers = keepers
        self._reconnect = reconnect
        self._tick = tick
        self._link: Link | None = None

    async def run(self) -> None:
        """Ticks, waits and settles until cancelled."""
        attempt = 0
        try:
            while True:
                try:
                    for keeper in self._keepers:
                        await keeper.tick()
                    await self._wait()
                    attempt = 0
                except (BrokerError, ReplyError) as error:
                    attempt += 1
                    log.debug("gates were not settled: %s", error)
                    if self._link is not None:
                        self._link.drop("the server refused")
                    await asyncio.sleep(max(self._tick, self._reconnect.pause(attempt, holding=False)))
        finally:
            if self._link is not None:
                await self._link.close()

    async def _wait(self) -> None:
        """Settles what is let through until the next tick."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._tick
        behind = {f"{hidden}:marker": (one, hidden) for one in self._keepers for hidden in one.hidden}
        if not behind:
            await asyncio.sleep(self._tick)
            return
        if self._link is None:
            self._link = self._server.link(self._slot)
        await self._link.connect()
        while (left := end - loop.time()) > 0.001:
            popped = await self._link.call("BZPOPMIN", *behind, f"{left:.3f}", timeout=left + 5.0)
            if popped is None:
                return
            keeper, hidden = behind[popped[0].decode("utf-8", "surrogateescape")]
            await keeper.settle(hidden)
