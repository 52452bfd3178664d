"""Warns of jobs whose targets no living worker fits, on any protocol.

Every worker has this loop, also one without abilities: a fleet of plain workers must say that jobs with a
target wait in vain. Of all workers of a queue one looks at a time, as long as it lives.

May touch: the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from oxcart.broker.port import ServedBroker
from oxcart.model.errors import BrokerError

log = logging.getLogger("oxcart.lanes")

#: Seconds between two looks.
LOOK = 10.0
#: Seconds after which another worker looks where the one that did is gone.
TURN = 15.0


class Unroutable:
    """Looks for jobs that no living worker can take, and logs each of their targets once.

    Args:
        brokers: The worker's queues.
        worker_id: Names the worker that looks.
    """

    def __init__(self, brokers: Sequence[ServedBroker], worker_id: str) -> None:
        self._brokers = [broker for broker in brokers if broker.lane is None]
        self._worker_id = worker_id
        self._logged: dict[str, set[str]] = {broker.keys.base: set() for broker in self._brokers}

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            for broker in self._brokers:
                try:
                    await self._look(broker)
                except BrokerError as error:
                    log.debug("queue %s: could not look for unroutable jobs: %s", broker.queue, error)
            await asyncio.sleep(LOOK)

    async def _look(self, broker: ServedBroker) -> None:
        known = self._logged[broker.keys.base]
        if not await self._is_our_turn(broker):
            known.clear()
            return
        found = await broker.unroutable()
        known.intersection_update(found)
        for lane, count in found.items():
            if lane not in known:
                known.add(lane)
                log.warning(
                    "queue %s: no registered worker can take the jobs of lane %s (%d wait)",
                    broker.queue,
                    lane,
                    count,
                    extra={"queue": broker.queue},
                )

    async def _is_our_turn(self, broker: ServedBroker) -> bool:
        """Whether the queue has jobs with targets, and no other worker looks at them."""
        call, turn = broker.caller.command, broker.keys.watcher()
        if not await call("EXISTS", broker.keys.lanes()):
            return False
        life = round(TURN * 1000)
        if await call("SET", turn, self._worker_id, "NX", "PX", life):
            return True
        if await call("GET", turn) != self._worker_id.encode():
            return False
        await call("PEXPIRE", turn, life)
        return True
