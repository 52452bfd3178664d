"""A worker's entry in the registry of each of its queues: written every ten seconds, taken away at its end.

May touch: the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping

from oxcart.broker.bullmq import registry
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.registry import Told, WorkerRecord
from oxcart.model.errors import BrokerError

log = logging.getLogger("oxcart.worker")

#: Seconds that the end of a worker takes at most to be written down.
LEAVE = 1.0


class Registration:
    """The heartbeat of one worker.

    Args:
        brokers: Its queues, by their numbers.
        worker_id: Its id.
        record: Makes its record for a queue.
        told: What it is to be told of a queue's lanes, by the queue's number.
    """

    def __init__(
        self,
        brokers: Mapping[int, BullMQBroker],
        *,
        worker_id: str,
        record: Callable[[BullMQBroker], WorkerRecord],
        told: Callable[[int], Told],
    ) -> None:
        self._brokers = brokers
        self._id = worker_id
        self._record = record
        self._told = told
        self._sooner = asyncio.Event()
        #: Set when the first heartbeat was tried.
        self.begun = asyncio.Event()

    def soon(self) -> None:
        """Something of the record has changed: writes it now."""
        self._sooner.set()

    async def run(self) -> None:
        """Beats until cancelled."""
        while True:
            self._sooner.clear()
            for index, broker in self._brokers.items():
                try:
                    await broker.now()  # so that the first record shows the server's time as well
                    await registry.beat(broker, self._record(broker), told=self._told(index))
                except BrokerError as error:
                    log.debug("queue %s: a heartbeat is lost: %s", broker.queue, error)
            self.begun.set()
            try:
                async with asyncio.timeout(registry.EVERY):
                    await self._sooner.wait()
            except TimeoutError:
                continue

    async def leave(self) -> None:
        """Takes the worker out of the registry; one that cannot be reached forgets it by itself."""
        with contextlib.suppress(BrokerError, TimeoutError):
            async with asyncio.timeout(LEAVE):
                for broker in self._brokers.values():
                    await registry.leave(broker, self._id)
