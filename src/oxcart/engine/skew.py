"""Warns if the clock of this machine differs from the server's.

Jobs do not suffer from it: scripts use the server's clock (docs/decisions/62). But peers set and
compare due times by their own clocks, and log lines and ages are off.
"""

from __future__ import annotations

import logging

from oxcart.broker.port import ServedBroker
from oxcart.engine.looper import Looper

log = logging.getLogger("oxcart.worker")

#: Ms of difference at which to warn, and of change at which to warn again.
SKEWED = 1_000


class SkewWatch(Looper):
    """Compares the clock of this machine with a server's, and logs a difference once.

    Args:
        broker: A queue on the server.
    """

    name = "look at the server's clock"
    interval = 10.0

    def __init__(self, broker: ServedBroker) -> None:
        super().__init__(broker.queue)
        self._broker = broker
        self._logged = 0

    async def tick(self) -> None:
        """Compares the clocks once."""
        await self._broker.now()
        skew, server = self._broker.clock.skew_ms, self._broker.server_name
        if abs(skew - self._logged) < SKEWED:
            return
        if abs(skew) < SKEWED:
            self._logged = 0
            log.info("the clock of this machine is in step with that of the server %s", server)
            return
        self._logged = skew
        log.warning(
            "the clock of this machine is %.1f s %s that of the server %s",
            abs(skew) / 1000,
            "ahead of" if skew > 0 else "behind",
            server,
            extra={"skew_seconds": skew / 1000},
        )
