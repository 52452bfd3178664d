"""Counts of ended jobs by the minute, as BullMQ's workers and ours keep them."""

from __future__ import annotations

from typing import Literal

from oxcart.broker.bullmq.part import QueuePart
from oxcart.broker.port.parts import Metrics
from oxcart.broker.port.results import Series
from oxcart.broker.replies import number


class QueueMetrics(QueuePart, Metrics):
    """The minute counts of one queue."""

    async def series(self, state: Literal["completed", "failed"], first: int = 0, last: int = -1) -> Series:
        key = self._broker.keys.metrics(state)
        kept, points, total = await self._broker.caller.pipeline(
            [
                ("HMGET", key, "count", "prevTS", "prevCount"),
                ("LRANGE", f"{key}:data", first, last),
                ("LLEN", f"{key}:data"),
            ]
        )
        count, at, before = (number(raw) for raw in kept)
        return Series(count, [number(point) for point in points], total, at, before)
