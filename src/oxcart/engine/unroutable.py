"""Warns of jobs whose targets no living worker fits, on any protocol.

Every worker runs this loop, even one without abilities: a fleet of plain workers must report jobs whose
target no worker has. One worker of a queue checks at a time.
"""

from __future__ import annotations

import logging

from oxcart.broker.port import ServedBroker
from oxcart.engine.looper import Looper

log = logging.getLogger("oxcart.lanes")

#: Seconds after which another worker checks if the last one is gone.
TURN = 15.0


class Unroutable(Looper):
    """Searches jobs of a queue that no living worker can take, and logs each of their targets once.

    Args:
        broker: The queue.
        worker_id: The worker that checks.
    """

    name = "search for unroutable jobs"
    interval = 10.0

    def __init__(self, broker: ServedBroker, worker_id: str) -> None:
        super().__init__(broker.queue)
        self._broker = broker
        self._worker_id = worker_id
        self._logged: set[str] = set()

    async def tick(self) -> None:
        """Checks once, unless another worker watches the queue."""
        broker = self._broker
        if not (await broker.has_targets() and await broker.take_watch(self._worker_id, round(TURN * 1000))):
            self._logged.clear()
            return
        found = await broker.unroutable()
        self._logged.intersection_update(found)
        for lane in found.keys() - self._logged:
            self._logged.add(lane)
            log.warning(
                "queue %s: no registered worker can take the jobs of lane %s (%d wait)",
                broker.queue,
                lane,
                found[lane],
                extra={"queue": broker.queue},
            )
