"""A worker's entries in the registries of its queues, with a heartbeat every ten seconds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Hashable, Sequence
from functools import cache, partial
from importlib.metadata import version

import msgspec

from oxcart.broker.clock import monotonic_ms
from oxcart.broker.port import ServedBroker
from oxcart.broker.workers import BEATS, EVERY, LIFE, Wakes, WorkerRecord, WorkerRegistry
from oxcart.engine.looper import Looper
from oxcart.model.errors import BrokerError
from oxcart.model.target import Abilities

#: Most seconds that a stopping worker spends on each entry.
LEAVE = 1.0
#: Queues up to which the record in each of them lists all; of more it lists the one that it is in.
LISTED = 64
#: First heartbeats a second: a server that must answer ten thousand at once is late for claims.
AT_ONCE = 200


@cache
def _version() -> str:
    return version("oxcart")  # reads a file


class Registration(Looper):
    """One entry of a worker, and its heartbeat.

    Args:
        broker: A queue that the entry is for.
        registry: Its registry.
        record: Makes the worker's record for a queue.
        wakes: Returns which adds to lanes wake the worker.

    Attributes:
        beats_in: The queue whose entry shows that the worker lives, if it is another one.
    """

    name = "heartbeat"
    interval = EVERY

    def __init__(
        self,
        broker: ServedBroker,
        registry: WorkerRegistry,
        record: Callable[[ServedBroker, WorkerRegistry], WorkerRecord],
        wakes: Callable[[], Wakes],
    ) -> None:
        super().__init__(broker.queue)
        self.registry = registry
        self.beats_in = ""
        self.broker = broker
        self._record = record
        self._wakes = wakes

    async def tick(self) -> None:
        """Writes the record, and removes entries of workers that are long gone."""
        async with asyncio.timeout(self.interval):
            if self.interval == EVERY or not self.broker.clock.is_known:
                await self.broker.now()  # so that the first record shows the server's time as well
            record = self._record(self.broker, self.registry)
            if self.beats_in:
                record = msgspec.structs.replace(record, beats_in=self.beats_in)
            await self.registry.beat(record, self._wakes(), life=LIFE * self.interval / EVERY)
            await self.registry.sweep()

    async def leave(self) -> None:
        """Removes the entry; a server that cannot be reached lets it expire."""
        with contextlib.suppress(BrokerError, TimeoutError):
            async with asyncio.timeout(LEAVE):
                await self.registry.leave(self._record(self.broker, self.registry).id)


class Registrations:
    """All entries of one worker: one per queue, or one per namespace.

    Args:
        brokers: The worker's queues.
        worker_id: Its id.
        name: Its name.
        concurrency: How many jobs it runs at once.
        abilities: Returns its abilities.
        is_routed: Returns whether it takes jobs with a target.
        wakes: Returns which adds to lanes of a queue, by its index, wake the worker.

    Attributes:
        entries: The entries, by the index of each queue that has a registry.

    Raises:
        ValidationError: A registry cannot have a worker of this name.
    """

    def __init__(
        self,
        brokers: Sequence[ServedBroker],
        *,
        worker_id: str,
        name: str,
        concurrency: int,
        abilities: Callable[[], Abilities],
        is_routed: Callable[[], bool],
        wakes: Callable[[int], Wakes],
    ) -> None:
        self._brokers = brokers
        self._id = worker_id
        self._name = name
        self._concurrency = concurrency
        self._abilities = abilities
        self._is_routed = is_routed
        self._started_ms = monotonic_ms()
        self.entries: dict[int, Registration] = {}
        places: dict[Hashable, Registration] = {}
        for index, broker in enumerate(brokers):
            if (registry := broker.registry) is None:
                continue
            registry.check_name(name)
            if registry.place not in places:
                entry = Registration(broker, registry, self._record, partial(wakes, index))
                places[registry.place] = entry
            self.entries[index] = places[registry.place]
        self._slow_down(list(places.values()))

    @staticmethod
    def _slow_down(entries: Sequence[Registration]) -> None:
        """Renews the entries of many queues seldom, except one for each server, which the others name."""
        interval = max(EVERY, len(entries) / BEATS)
        first: dict[Hashable, str] = {}
        for place, entry in enumerate(entries):
            entry.interval, entry.delay = interval, place // AT_ONCE
            queue = entry.broker.queue
            if interval > EVERY:
                entry.beats_in = first.setdefault((entry.broker.site, entry.broker.keys.prefix), queue)
            if entry.beats_in == queue:
                entry.interval, entry.beats_in = EVERY, ""

    @property
    def loops(self) -> list[Registration]:
        """The heartbeats."""
        return list(dict.fromkeys(self.entries.values()))

    @property
    def by_name(self) -> list[Registration]:
        """The entries without which the worker's jobs would count as lost."""
        return [one for one in self.loops if one.registry.by_name]

    async def begin(self, stopping: asyncio.Event) -> None:
        """Registers the worker if that must happen before it claims; a lost server only delays it.

        Args:
            stopping: Ends the wait for a server that is away.
        """
        if not (early := self.by_name):
            return
        beating = asyncio.create_task(_beat(early), name="oxcart-registration")
        stopped = asyncio.ensure_future(stopping.wait())
        try:
            await asyncio.wait((beating, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            beating.cancel()
            stopped.cancel()
            await asyncio.wait((beating, stopped))
        if not beating.cancelled():
            beating.result()

    def soon(self) -> None:
        """Writes the records now, because they have changed."""
        for one in self.loops:
            one.soon()

    async def leave(self) -> None:
        """Removes all entries at once: a silent server delays a stop by one timeout, not one per queue."""
        await asyncio.gather(*(one.leave() for one in self.loops))

    def _record(self, broker: ServedBroker, registry: WorkerRegistry) -> WorkerRecord:
        can, now, by_name = self._abilities(), broker.clock(), registry.by_name
        queues = self._brokers if len(self._brokers) <= LISTED else [broker]
        if by_name:
            queues = [
                self._brokers[at] for at, one in self.entries.items() if one.registry.place == registry.place
            ]
        return WorkerRecord(
            id=self._name if by_name else self._id,
            server=can.server or self._name,
            name=self._name,
            stack=can.stack,
            region=can.region,
            capabilities=can.capabilities,
            routed=self._is_routed(),
            pid=os.getpid(),
            hostname=socket.gethostname(),
            queues=tuple(one.queue for one in queues),
            concurrency=self._concurrency,
            version=_version(),
            started_at=now - (monotonic_ms() - self._started_ms),
            last_seen=now,
            clock=now + broker.clock.skew_ms,
        )


async def _beat(entries: Sequence[Registration]) -> None:
    await asyncio.gather(*(one.step() for one in entries))
