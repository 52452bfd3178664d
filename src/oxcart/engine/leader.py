"""Fires the schedules of a namespace, in the one worker that leads; the others wait until it is gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from oxcart.broker.port import ServedBroker
from oxcart.broker.port.schedules import ScheduleLeader
from oxcart.engine.looper import Looper
from oxcart.model.errors import BrokerError

#: Most seconds that a stopping worker spends on letting another lead.
RESIGN = 2.0


class Leadership(Looper):
    """One worker's part in firing the schedules of one namespace."""

    name = "firing of schedules"

    def __init__(self, queue: str, leader: ScheduleLeader) -> None:
        super().__init__(queue)
        self._leader = leader

    async def tick(self) -> None:
        """Fires due schedules, if this worker leads."""
        await self._leader.tick()

    async def resign(self) -> None:
        """Lets another worker lead at once."""
        if self._leader.term:
            with contextlib.suppress(BrokerError, TimeoutError):
                async with asyncio.timeout(RESIGN):
                    await self._leader.resign()


def leaderships_of(brokers: Sequence[ServedBroker], worker: str) -> list[Leadership]:
    """Returns the leaderships of a worker, by its name: one per namespace that has schedules to fire."""
    first = {one.registry.place: one for one in reversed(brokers) if one.registry is not None}
    return [
        Leadership(broker.queue, leader)
        for broker in first.values()
        if broker.schedules is not None and (leader := broker.schedules.leader(worker)) is not None
    ]
