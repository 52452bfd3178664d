"""The partitions of a queue as a worker consumes them: each is a queue of the worker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from oxcart.broker.connection import Reconnect
from oxcart.broker.ids import new_id
from oxcart.broker.port import ServedBroker
from oxcart.broker.port.parts import Partitions
from oxcart.engine.handler import Handlers
from oxcart.engine.looper import Looper
from oxcart.engine.source import Source
from oxcart.model.errors import PartitionNotEmpty

if TYPE_CHECKING:
    from collections.abc import Callable

    from oxcart.engine.tracing import Tracing
    from oxcart.engine.webhooks.queue import WebhookQueue

log = logging.getLogger("oxcart.worker")

#: Ms after the last change of a layout before a worker gives up partitions that are empty.
RETIRE_AFTER = 3_600_000
#: Ticks between attempts to do so.
RETIRE_EVERY = 100
#: Ticks between checks of the shares of limits, unless some are still to be moved.
SETTLE_EVERY = 20
#: Seconds that the arrangement of one queue may take; the next tick continues it.
BOUND = 10.0
#: Ms for which a worker is the one that arranges a queue.
TERM = 12_000


class Partition(Source):
    """One partition of a queue.

    Args:
        queue: The queue.
        spread: Its partitions, on connections of the worker.
        number: The partition.
    """

    def __init__(self, queue: Source, spread: Partitions, number: int) -> None:
        self._queue = queue
        self._broker = spread.broker(number)
        self.number = number

    @property
    def name(self) -> str:
        """The partition's name."""
        return self._broker.queue

    @property
    def handlers(self) -> Handlers:
        """The handlers of the queue."""
        return self._queue.handlers

    @property
    def tracing(self) -> Tracing | None:
        """Makes spans of what happens to the queue's jobs."""
        return self._queue.tracing

    @property
    def webhook_queue(self) -> WebhookQueue | None:
        """The queue in which the webhooks of all partitions wait."""
        return self._queue.webhook_queue

    @property
    def partitions(self) -> int | None:
        """None: a partition has none."""
        return None

    def open_broker(self, reconnect: Reconnect | None = None) -> ServedBroker:
        """Returns the partition's broker, which the worker shares with its other loops."""
        return self._broker

    def station_facts(self) -> dict[str, Any]:
        """Returns the facts by which the renewer process finds the partition."""
        facts = self._queue.station_facts()
        location = self._broker.server.location
        if location is not None:
            facts["url"] = location.url
        return facts | {"queue": self.name}


class Fleet:
    """The partitioned queues of one worker.

    Args:
        queues: The queues of the worker.
        reconnect: Pauses and limit of attempts to reach a lost server.
    """

    def __init__(self, queues: Sequence[Source], reconnect: Reconnect) -> None:
        self._queues = queues
        #: The logical queues with partitions, each with a broker over all of them.
        self.whole: list[tuple[Source, ServedBroker]] = [
            (queue, queue.open_broker(reconnect)) for queue in queues if queue.partitions is not None
        ]
        self._taken: dict[Source, int] = {}
        self._settled: dict[Source, int] = {}
        self._id = new_id()

    async def expand(self) -> list[Source]:
        """Returns the queues to consume, with the partitions in the place of their queue."""
        found: list[Source] = []
        whole = dict(self.whole)
        for queue in self._queues:
            broker = whole.get(queue)
            found += [queue] if broker is None else await self._further(queue, broker)
        return found

    async def _further(self, queue: Source, broker: ServedBroker) -> list[Source]:
        spread = broker.partitions
        assert spread is not None
        await spread.refresh()
        first, count = self._taken.get(queue, 0), spread.layout.served
        self._taken[queue] = max(first, count)
        return [Partition(queue, spread, number) for number in range(first, count)]

    async def grown(self) -> tuple[list[Source], list[BaseException]]:
        """Returns the partitions of newer layouts that the worker does not consume yet, and failed reads."""
        reads = (self._further(queue, broker) for queue, broker in self.whole)
        found = await asyncio.gather(*reads, return_exceptions=True)
        errors = [one for one in found if isinstance(one, BaseException)]
        return [one for row in found if not isinstance(row, BaseException) for one in row], errors

    async def retire(self) -> None:
        """Gives up partitions without new jobs that are empty, an hour after the last resize.

        Takes back those that got jobs after they were given up.
        """
        await _all(self._retire(broker) for _, broker in self.whole)

    async def _retire(self, broker: ServedBroker) -> None:
        spread = broker.partitions
        assert spread is not None
        async with asyncio.timeout(BOUND):
            if spread.layout.served > spread.layout.size:
                with contextlib.suppress(PartitionNotEmpty):
                    await spread.retire(least_age_ms=RETIRE_AFTER)
            await spread.reclaim()

    async def arrange(self, *, again: bool = False, retire: bool = False) -> None:
        """Moves schedules and shares of limits after a resize or ``again``; with ``retire`` also retires.

        One worker does it for a queue. A queue that fails does not keep it from the others.

        Raises:
            OxcartError: It failed for one of the queues.
            TimeoutError: It took longer than `BOUND` for one of them.
        """
        await _all(self._arrange(queue, broker, again, retire) for queue, broker in self.whole)

    async def _arrange(self, queue: Source, broker: ServedBroker, again: bool, retire: bool) -> None:
        spread = broker.partitions
        assert spread is not None
        version = spread.layout.version
        if not again and not retire and self._settled.get(queue) == version:
            return
        async with asyncio.timeout(BOUND):
            if await broker.take_duty("partitions", self._id, TERM):
                self._settled[queue] = version  # `again` asks once more, should that worker be lost
                return
        self._settled.pop(queue, None)
        if retire:
            await _all((self._settle(queue, spread), self._retire(broker)))
        else:
            await self._settle(queue, spread)

    async def _settle(self, queue: Source, spread: Partitions) -> None:
        version = spread.layout.version
        async with asyncio.timeout(BOUND):
            if await spread.settle():
                self._settled[queue] = version

    async def close(self) -> None:
        """Closes the connections."""
        for _, broker in self.whole:
            await broker.close()


class LayoutWatch(Looper):
    """Learns of new layouts, and lets the worker take further partitions in.

    Args:
        fleet: The partitioned queues.
        take: Lets the worker consume further queues.
    """

    name = "watch of partitions"
    interval = 3.0

    def __init__(self, fleet: Fleet, take: Callable[[list[Source]], None]) -> None:
        super().__init__(", ".join(queue.name for queue, _ in fleet.whole))
        self._fleet = fleet
        self._take = take

    async def tick(self) -> None:
        """Reads the layouts."""
        further, errors = await self._fleet.grown()
        if further:
            log.info("takes partitions in: %s", ", ".join(one.name for one in further))
            self._take(further)
        for error in errors:
            raise error


class Arrangement(Looper):
    """Moves schedules and shares of limits after a resize, and gives up partitions that are not needed.

    It is apart from `LayoutWatch`: a server that is away must not keep the worker from new partitions.

    Args:
        fleet: The partitioned queues.
    """

    name = "arrangement of partitions"
    interval = 3.0
    delay = 3.0

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(", ".join(queue.name for queue, _ in fleet.whole))
        self._fleet = fleet
        self._ticks = 0

    async def tick(self) -> None:
        """Arranges the queues whose layout is new, and now and then all of them."""
        self._ticks += 1
        await self._fleet.arrange(
            again=self._ticks % SETTLE_EVERY == 0, retire=self._ticks % RETIRE_EVERY == 0
        )


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Does all of it at once, and then raises the first error."""
    for found in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(found, BaseException):
            raise found
