"""Warns where the clock of this machine is not in step with a server's.

Jobs do not suffer by it: scripts judge by the server's clock (docs/decisions/62). But peers set and judge due
times by theirs, and log lines and ages are off.

May touch: the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from oxcart.broker.port import ServedBroker
from oxcart.model.errors import BrokerError

log = logging.getLogger("oxcart.worker")

#: Seconds between two looks.
LOOK = 10.0
#: Ms of difference at which to warn, and of change at which to warn again.
SKEWED = 1_000


class SkewWatch:
    """Compares the clock of this machine with those of the servers, and logs a difference once.

    Args:
        brokers: The worker's queues.
    """

    def __init__(self, brokers: Sequence[ServedBroker]) -> None:
        servers = {(id(broker.server), broker.slot): broker for broker in brokers}
        self._brokers = list(servers.values())
        self._logged = dict.fromkeys(servers, 0)

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            for broker in self._brokers:
                try:
                    await self.look(broker)
                except BrokerError as error:
                    log.debug("queue %s: could not read the server's clock: %s", broker.queue, error)
            await asyncio.sleep(LOOK)

    async def look(self, broker: ServedBroker) -> None:
        """Looks once at the server of a queue."""
        await broker.now()
        skew, place = broker.clock.skew_ms, (id(broker.server), broker.slot)
        if abs(skew - self._logged[place]) < SKEWED:
            return
        if abs(skew) < SKEWED:
            self._logged[place] = 0
            log.info("the clock of this machine is in step with that of the server %s", broker.server.name)
            return
        self._logged[place] = skew
        log.warning(
            "the clock of this machine is %.1f s %s that of the server %s",
            abs(skew) / 1000,
            "ahead of" if skew > 0 else "behind",
            broker.server.name,
            extra={"skew_seconds": skew / 1000},
        )
