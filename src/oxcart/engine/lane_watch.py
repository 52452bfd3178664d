"""Watches for lanes of many queues on one server, so that no queue without lanes needs a loop of its own.

A worker learns of a new lane by its wake key. This watch finds lanes whose wake-up was lost: one command
reads the versions of the lanes of all queues. Peers write no versions for the lanes that they make. One
worker per server scans the keys for these, for all queues at once.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from oxcart.broker.port import ServedBroker
from oxcart.engine.duty import group_of
from oxcart.engine.lanes import SCANS, Lanes
from oxcart.engine.looper import Looper

#: Ms for which a worker keeps others from scanning.
TERM = 15_000
#: Seconds between two steps of a scan that has not reached its end.
SCANNING = 1.0


class LaneWatch(Looper):
    """The watch of one worker over the queues of one server.

    Args:
        brokers: The queues; all with the same prefix.
        lanes: Their lanes, in the same order.
        worker_id: The worker's id.
    """

    name = "watch of lanes"
    interval = 5.0

    def __init__(self, brokers: Sequence[ServedBroker], lanes: Sequence[Lanes], worker_id: str) -> None:
        super().__init__(f"{brokers[0].queue} and {len(brokers) - 1} others")
        self._lanes = lanes
        self._stores = [one.store for one in lanes]
        self._first = min(brokers, key=lambda broker: broker.queue)
        self._group = group_of(brokers, "lanes")
        self._worker_id = worker_id
        self._cursor = "0"

    async def tick(self) -> float | None:
        """Lets queues with new lanes tick; on duty, scans for lanes of peers."""
        versions = await self._stores[0].versions(self._stores)
        for one, version in zip(self._lanes, versions, strict=True):
            if version != max(0, one.version):
                one.soon()
        left_ms = await self._first.take_duty(self._group, self._worker_id, TERM)
        if left_ms:
            self._cursor = "0"
            return self.interval * (0.5 + random.random() / 2)
        for _ in range(SCANS):
            self._cursor, found = await self._stores[0].scan(self._cursor, self._stores)
            for place, lane in found:
                await self._lanes[place].enter(lane)
            if self._cursor == "0":
                return None
        return SCANNING
