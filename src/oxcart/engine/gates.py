"""Releases dependents whose dependency finished in a worker that could not reach them."""

from __future__ import annotations

from oxcart.broker.connection import Reconnect
from oxcart.broker.port.parts import GateListener
from oxcart.engine.looper import Looper


class GateRelease(Looper):
    """The release of dependents by one worker on one server.

    Args:
        listener: Settles gates as soon as they open.
        reconnect: Pauses between attempts to reach a lost server.
        every: Seconds between two checks of all gates.
    """

    name = "release of dependents"
    interval = 0.0  # a tick lasts until the next one is due

    def __init__(self, listener: GateListener, *, reconnect: Reconnect, every: float = 1.0) -> None:
        super().__init__()
        self._listener = listener
        self._reconnect = reconnect
        self._every = every

    async def tick(self) -> None:
        """Settles gates until the next check of all of them is due."""
        await self._listener.settle_for(self._every)

    def retry_after(self, failures: int) -> float:
        """Waits as long as any other attempt to reach a lost server."""
        return max(self._every, self._reconnect.pause(failures, holding=False))

    async def close(self) -> None:
        """Closes the listener's connection."""
        await self._listener.close()
