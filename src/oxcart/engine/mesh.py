"""A worker's place in the fleet: its registration, and the lanes that its abilities open to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial

from oxcart.broker.port import Outage, ServedBroker
from oxcart.broker.workers import Wakes
from oxcart.engine.claims import Claims
from oxcart.engine.duty import FEW
from oxcart.engine.lane_watch import LaneWatch
from oxcart.engine.lanes import MARKERS, Lanes
from oxcart.engine.leases import Leases
from oxcart.engine.looper import Looper
from oxcart.engine.recovery import StalledCheck
from oxcart.engine.registration import Registrations
from oxcart.engine.running import RunningJob
from oxcart.engine.station import Station
from oxcart.engine.waiter import Taker
from oxcart.model.target import Abilities


class Mesh:
    """The lanes and the registration of one worker.

    Args:
        worker_id: The worker's id.
        name: Its name.
        concurrency: How many jobs it runs at once.
        abilities: Its abilities; None if it takes no jobs with a target.
        stations: Its queues.
        claims: Claims from them.
        leases: Its leases.
        clock: The clock of ``Claims``.
        check: Makes the stalled check of a lane; None if this worker does not check.
        outage: When the server counts as having been away; None if this worker does not check.
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
        check: Callable[[ServedBroker], StalledCheck] | None,
        outage: Outage | None,
    ) -> None:
        self._name = name
        self._abilities = abilities
        self._stations = list(stations)  # stations of lanes follow, each at its number
        self._roots = len(stations)
        self._claims = claims
        self._leases = leases
        self._clock = clock
        self._register = partial(
            Registrations,
            worker_id=worker_id,
            name=name,
            concurrency=concurrency,
            abilities=self._can,
            is_routed=lambda: self._abilities is not None,
            wakes=self._wakes,
        )
        self._registrations = self._register([one.broker for one in stations])
        self._further: list[Registrations] = []  # of queues that were taken in later
        self._serve()
        roots = [one for one in stations if one.broker.lanes is not None and one.broker.lane is None]
        if abilities is None:
            roots = []
        sites: dict[Hashable, list[Station]] = {}
        for root in roots:
            sites.setdefault((root.broker.site, root.broker.keys.prefix), []).append(root)
        watched = [row for row in sites.values() if len(row) > FEW]
        calm = {root for row in watched for root in row}
        self._lanes = {
            root.index: Lanes(
                root,
                worker_id,
                abilities=self._can,
                claims=claims,
                open_station=self._open,
                is_held=lambda station: bool(leases.held(station.index)),
                on_crowded=self._registrations.entries[root.index].soon,
                most=max(1, (MARKERS - len(roots)) // len(roots)),
                registered=self._registrations.entries[root.index].begun,
                check=check,
                outage=outage,
                watched=root in calm,
            )
            for root in roots
        }
        self._watches = [
            LaneWatch([root.broker for root in row], [self._lanes[root.index] for root in row], worker_id)
            for row in watched
        ]

    @property
    def stations(self) -> Sequence[Station]:
        """All queues and lanes that the worker claims or claimed from."""
        return self._stations

    def loops(self) -> list[Looper]:
        """Returns the loops of the registration and of the lanes."""
        return [*self._registrations.loops, *self._watches, *self._lanes.values()]

    def take_in(self, stations: Sequence[Station]) -> list[Looper]:
        """Takes further queues without lanes in, each at the next number; returns their loops."""
        self._stations += stations
        for station in stations:
            station.broker.serve(self._can())
        registrations = self._register([one.broker for one in stations])
        self._further.append(registrations)
        return [*registrations.loops]

    @property
    def may_change(self) -> bool:
        """Whether a worker that started without abilities may get some: it serves a namespace."""
        return bool(self._registrations.by_name)

    async def begin(self, stopping: asyncio.Event) -> None:
        """Registers the worker if that must happen before it claims."""
        await self._registrations.begin(stopping)

    async def leave(self) -> None:
        """Removes the worker from the registries."""
        await asyncio.gather(*(one.leave() for one in (self._registrations, *self._further)))

    def change(self, abilities: Abilities) -> None:
        """Changes the worker's abilities."""
        self._abilities = abilities
        self._serve()
        for lanes in self._lanes.values():
            lanes.reconsider()
        for one in (self._registrations, *self._further):
            one.soon()

    def beside(self, indexes: Sequence[int]) -> Mapping[bytes, Taker]:
        """Returns the keys to wait for beside the markers of some queues, if a slot is free."""
        waits: dict[bytes, Taker] = {}
        if self._lanes and self._claims.has_room:
            now = self._clock()
            for index in indexes:
                if index in self._lanes:
                    waits |= self._lanes[index].beside(now)
        return waits

    def starved(self) -> None:
        """Gives the places of idle lanes to lanes with jobs, after a queue has run empty."""
        for lanes in self._lanes.values():
            lanes.refill()

    def is_settled(self, indexes: Sequence[int]) -> bool:
        """Whether every one of some queues, with its lanes, is known to be idle or not."""
        if len(indexes) == 1 and not self._lanes:
            return True  # with one queue alone there is no other marker to miss
        here = set(indexes)
        return not any(one.root.index in here for one in self._claims.ready)

    def dues(self, indexes: Sequence[int]) -> list[int]:
        """Returns when delayed jobs in lanes of some queues are due."""
        return [due for index in indexes if index in self._lanes for due in self._lanes[index].dues()]

    def held(self, index: int) -> dict[str, RunningJob]:
        """Returns the worker's jobs of a queue and its lanes, by id."""
        held = self._leases.held(index)
        for station in self._stations[self._roots :]:
            if station.root.index == index and (more := self._leases.held(station.index)):
                held = held | more
        return held

    def _can(self) -> Abilities:
        return self._abilities or Abilities(self._name)

    def _serve(self) -> None:
        for station in self._stations[: self._roots]:
            station.broker.serve(self._can())

    def _open(self, root: Station, lane: str) -> Station:
        index = self._leases.add_station({"of": root.index, "lane": lane})
        assert root.broker.lanes is not None
        station = Station(index, root.broker.lanes.open(lane), root)
        self._stations.append(station)
        return station

    def _wakes(self, index: int) -> Wakes:
        lanes = self._lanes.get(index)
        return Wakes.NOTHING if lanes is None else Wakes.EVERY_ADD if lanes.is_crowded else Wakes.NEW_LANES
