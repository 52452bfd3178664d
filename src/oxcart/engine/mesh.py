"""A worker's place among the others: what it says of itself, and the lanes that its abilities open to it.

May touch: the server, through its parts.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.registry import Told, WorkerRecord
from oxcart.broker.clock import monotonic_ms
from oxcart.broker.factory import is_native
from oxcart.broker.port import Outage
from oxcart.engine.claims import Claims, Station
from oxcart.engine.lanes import MARKERS, Lanes
from oxcart.engine.leases import Leases
from oxcart.engine.registration import Registration
from oxcart.engine.running import RunningJob
from oxcart.engine.waiter import Taker
from oxcart.model.target import Abilities


class Mesh:
    """The lanes and the registration of one worker.

    Args:
        worker_id: The worker's id.
        name: Its name.
        concurrency: How many jobs it runs at once.
        abilities: What it can do; None where it takes no jobs with a target.
        stations: Its queues.
        claims: Claims from them.
        leases: Knows what is held.
        clock: The clock of ``Claims``.
        recovered: Told the queue and the ids of jobs that came back from lost workers.
        max_stalled: How often a job may stall before it is failed.
        stalled_interval: Seconds between looks for such jobs; None where this worker does not look.
        outage: When the server counts as having been away; None where this worker does not look.
    """

    def __init__(
        self,
        worker_id: str,
        name: str,
        concurrency: int,
        abilities: Abilities | None,
        *,
        stations: Sequence[Station],
        claims: Claims,
        leases: Leases,
        clock: Callable[[], int],
        recovered: Callable[[str, list[str]], None],
        max_stalled: int,
        stalled_interval: float | None,
        outage: Outage | None = None,
    ) -> None:
        self._id = worker_id
        self._name = name
        self._concurrency = concurrency
        self._abilities = abilities
        self._stations = list(stations)  # those of lanes follow, so that each is at its number
        self._claims = claims
        self._leases = leases
        self._clock = clock
        self._started_ms = monotonic_ms()
        self._queues = tuple(station.broker.queue for station in stations)
        native = {one.index: one.broker for one in stations if is_native(one.broker)}
        self._registration = Registration(native, worker_id=worker_id, record=self._record, told=self._told)
        roots = [one for one in stations if one.index in native and one.broker.lane is None]
        if abilities is None:
            roots = []
        self._lanes = {
            root.index: Lanes(
                root,
                worker_id,
                abilities=self._can,
                claims=claims,
                open_station=self._open,
                is_held=lambda station: bool(leases.held(station.index)),
                on_crowded=self._registration.soon,
                most=max(1, (MARKERS - len(roots)) // len(roots)),
                recovered=recovered,
                max_stalled=max_stalled,
                stalled_interval=stalled_interval,
                outage=outage,
            )
            for root in roots
        }

    @property
    def stations(self) -> Sequence[Station]:
        """All queues and lanes that the worker takes or took jobs from."""
        return self._stations

    def loops(self) -> list[asyncio.Task[None]]:
        """Starts what goes on until the worker ends."""
        started = [asyncio.create_task(self._registration.run(), name="oxcart-registration")]
        started += [asyncio.create_task(self._tend(one), name="oxcart-lanes") for one in self._lanes.values()]
        return started

    async def _tend(self, lanes: Lanes) -> None:
        # A lane that comes after the first look is told to the worker, but only once it is registered.
        await self._registration.begun.wait()
        await lanes.run()

    async def leave(self) -> None:
        """Takes the worker out of the registry."""
        await self._registration.leave()

    def change(self, abilities: Abilities) -> None:
        """Takes jobs by other abilities from now on."""
        self._abilities = abilities
        for lanes in self._lanes.values():
            lanes.reconsider()
        self._registration.soon()

    def beside(self, indexes: Sequence[int]) -> Mapping[bytes, Taker]:
        """The keys to wait for beside the markers of some queues, while a job could be taken."""
        waits: dict[bytes, Taker] = {}
        if self._lanes and self._claims.has_room:
            now = self._clock()
            for index in indexes:
                if index in self._lanes:
                    waits |= self._lanes[index].beside(now)
        return waits

    def starved(self) -> None:
        """A queue has nothing more: lanes that have work may take its place."""
        for lanes in self._lanes.values():
            lanes.refill()

    def is_settled(self, indexes: Sequence[int]) -> bool:
        """Whether it is known of some queues and their lanes if they are idle."""
        if len(indexes) == 1 and not self._lanes:
            return True  # one queue alone is waited for, or not
        return not any(
            one.ready for index in indexes for one in (self._stations[index], *self._stations[index].family)
        )

    def dues(self, indexes: Sequence[int]) -> list[int]:
        """When delayed jobs in lanes of some queues are due."""
        return [due for index in indexes if index in self._lanes for due in self._lanes[index].dues()]

    def held(self, index: int) -> dict[str, RunningJob]:
        """The jobs held of a queue and its lanes."""
        held = self._leases.held(index)
        for station in self._stations[len(self._queues) :]:
            if station.root.index == index and (more := self._leases.held(station.index)):
                held = held | more
        return held

    def _can(self) -> Abilities:
        return self._abilities or Abilities(self._name)

    def _open(self, root: Station, lane: str) -> Station:
        index = self._leases.add_station({"of": root.index, "lane": lane})
        assert is_native(root.broker)
        station = Station(index, root.broker.lanes.open(lane), root)
        self._stations.append(station)
        return station

    def _told(self, index: int) -> Told:
        lanes = self._lanes.get(index)
        return "" if lanes is None else "2" if lanes.is_crowded else "1"

    def _record(self, broker: BullMQBroker) -> WorkerRecord:
        can, now = self._can(), broker.clock()
        return WorkerRecord(
            id=self._id,
            server=can.server or self._name,
            name=self._name,
            stack=can.stack,
            region=can.region,
            capabilities=can.capabilities,
            routed=self._abilities is not None,
            pid=os.getpid(),
            hostname=socket.gethostname(),
            queues=self._queues,
            concurrency=self._concurrency,
            version=version("oxcart"),
            started_at=now - (monotonic_ms() - self._started_ms),
            last_seen=now,
            clock=now + broker.clock.skew_ms,
        )
