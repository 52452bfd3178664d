"""The lanes of a queue for one worker: which match it, which have jobs, and their maintenance.

A worker with abilities takes jobs from its queue and from every lane that fits it. It waits for the markers
of at most 32 lanes. Its wake key wakes it for a new lane. If more lanes fit than it can wait for, the key
wakes it for every add to a lane. A tick finds lanes that were missed.

Once a second one of the workers maintains all lanes of the queue. It promotes due jobs, recovers stalled
jobs, ends expired jobs and releases dependents. It removes lanes that stay empty, drops
entries of ids whose jobs are gone, and scans for lanes that peers have made.

With many queues on a server a queue without lanes hardly ticks: a watch finds its first lane.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping

from oxcart.broker.port import Outage, ServedBroker
from oxcart.engine.claims import Claims
from oxcart.engine.looper import Looper
from oxcart.engine.recovery import SIGNS, StalledCheck
from oxcart.engine.station import Station
from oxcart.engine.waiter import Taker
from oxcart.model.target import Abilities

log = logging.getLogger("oxcart.lanes")

#: Ms for which a tick keeps other workers from ticking, per second of the interval.
GUARD = 950
#: Markers that one blocking call waits for at most.
MARKERS = 32
#: Steps of the scan for lanes of peers per tick, each of some hundred keys.
SCANS = 20
#: Steps of the sweep of custom ids per tick, each of about a hundred.
SWEEPS = 10
#: Seconds between two ticks of a queue without lanes that a watch looks after.
CALM = 600.0


class Lanes(Looper):
    """The lanes of one queue.

    Args:
        root: The queue.
        worker_id: The worker's id, which names its wake key.
        abilities: Returns the worker's present abilities.
        claims: Claims from the lanes that fit.
        open_station: Makes the station of a lane.
        is_held: Returns whether the worker has jobs of a station.
        on_crowded: Called when `is_crowded` changes.
        most: How many markers to wait for at most.
        registered: Set once the worker is in the registry.
        check: Makes the stalled check of a lane; None if this worker does not check.
        outage: When the server counts as having been away; None if this worker does not check.
        watched: Whether a watch finds new lanes, so that a queue without lanes need not tick.
    """

    name = "tending of lanes"

    def __init__(
        self,
        root: Station,
        worker_id: str,
        *,
        abilities: Callable[[], Abilities],
        claims: Claims,
        open_station: Callable[[Station, str], Station],
        is_held: Callable[[Station], bool],
        on_crowded: Callable[[], None],
        most: int = MARKERS,
        registered: asyncio.Event,
        check: Callable[[ServedBroker], StalledCheck] | None,
        outage: Outage | None,
        watched: bool = False,
    ) -> None:
        super().__init__(root.broker.queue)
        assert root.broker.lanes is not None
        self._root = root
        self.store = self._store = root.broker.lanes
        self._worker_id = worker_id
        self._abilities = abilities
        self._claims = claims
        self._open_station = open_station
        self._is_held = is_held
        self._on_crowded = on_crowded
        self._most = most
        self._registered = registered
        self._check = check
        self._outage = outage
        if outage is not None:  # every tick gives a sign of life
            self.interval = min(self.interval, outage.silence_ms / 1000 / SIGNS)
        self._wake_key = self._store.wake_key(worker_id)
        #: Grows with every new or removed lane; -1 before the first tick.
        self.version = -1
        self._names: set[str] = set()
        self._fits: dict[str, bool] = {}
        self._stations: dict[str, Station] = {}  # every lane that the worker ever claimed from
        self._live: dict[str, Station] = {}  # lanes to claim from now, the last with jobs at the end
        self._backlog: dict[str, None] = {}  # lanes with jobs for which there is no place yet
        self._dice = random.Random(worker_id)
        self._watched = watched
        if watched:
            self.delay = CALM * random.random()
        self._is_news = False
        self._checks: dict[str, tuple[StalledCheck, float]] = {}
        self._cursor = self._notes_cursor = "0"
        #: Whether more lanes fit the worker than it can wait for.
        self.is_crowded = False

    # -- for the worker's other parts

    def beside(self, now: int) -> Mapping[bytes, Taker]:
        """Returns the keys to wait for beside the queue's marker, each with its taker."""
        if self._root.until_ms > now:
            return {}
        self._is_news = False
        waits: dict[bytes, Taker] = {self._wake_key: self._heard}
        for lane, station in self._live.items():
            if not station.ready and station.until_ms <= now:
                waits[station.broker.keys.marker().encode()] = self._taker(lane, station)
        return waits

    def dues(self) -> Iterable[int]:
        """Returns when delayed jobs are due in the lanes that the worker waits for."""
        return (one.due_ms for one in self._live.values() if one.due_ms and not one.ready)

    def reconsider(self) -> None:
        """Chooses the lanes again after the worker's abilities have changed."""
        self._fits.clear()
        self._refit(())
        self.soon()

    def _taker(self, lane: str, station: Station) -> Taker:
        def take(_: bytes) -> bool:
            # The worker may have left the lane since the wait began: then another worker needs the marker.
            if lane not in self._live or not self._claims.has_room:
                return False
            self._use(lane, station)
            return True

        return take

    def _heard(self, member: bytes) -> bool:
        lane = member.decode("utf-8", "surrogateescape")
        if lane:
            if self._watched and not self._names:
                self.soon()  # it ticks every second from now on
            self._names.add(lane)
            self._refit((lane,))
        return True

    # -- which lanes

    def _is_fit(self, lane: str) -> bool:
        fits = self._fits.get(lane)
        if fits is None:
            fits = self._fits[lane] = self._store.fits(lane, self._abilities())
        return fits

    def _refit(self, ready: Iterable[str]) -> None:
        """Claims from the lanes that fit, up to the number of markers."""
        fitting = [lane for lane in self._names if self._is_fit(lane)]
        for lane in [lane for lane in self._live if lane not in self._names or not self._is_fit(lane)]:
            self._leave(lane)
        self._set_crowded(len(fitting) > self._most)
        self._backlog = {lane: None for lane in self._backlog if lane in self._names and self._is_fit(lane)}
        with_work = [lane for lane in ready if lane in self._names and self._is_fit(lane)]
        self._dice.shuffle(with_work)  # otherwise all workers would choose the same lanes
        if not self.is_crowded:
            for lane in fitting:
                if lane not in self._live:
                    self._join(lane)
        for lane in with_work:
            if (station := self._live.get(lane)) is not None:
                self._use(lane, station)
            else:
                self._backlog[lane] = None
        self.refill()

    def refill(self) -> None:
        """Gives the places of lanes without jobs to lanes in the backlog."""
        while self._backlog:
            lane = next(iter(self._backlog))
            if lane not in self._live and not self._join(lane):
                return
            del self._backlog[lane]

    def _make_room(self) -> None:
        """Moves places of lanes with jobs to lanes in the backlog, which might otherwise wait forever."""
        most = min(len(self._backlog), max(1, self._most // 4))
        for lane in [lane for lane, one in self._live.items() if not one.calls][:most]:
            self._leave(lane)
        self.refill()

    def _use(self, lane: str, station: Station) -> None:
        self._live[lane] = self._live.pop(lane)
        self._claims.wake_station(station)

    def _join(self, lane: str) -> bool:
        if len(self._live) >= self._most:
            for other, idle in self._live.items():  # the lane that had no jobs for the longest time
                if not idle.ready and not idle.calls and not self._is_held(idle):
                    self._leave(other)
                    break
            else:
                return False  # all have jobs
        station = self._stations.get(lane)
        if station is None:
            station = self._stations[lane] = self._open_station(self._root, lane)
        self._live[lane] = station
        self._is_news = True
        self._claims.join(station)
        return True

    def _leave(self, lane: str) -> None:
        self._claims.retire(self._live.pop(lane))

    def _set_crowded(self, crowded: bool) -> None:
        if crowded != self.is_crowded:
            self.is_crowded = crowded
            self._on_crowded()

    # -- the tick

    async def run(self) -> None:
        """Ticks until cancelled, once the worker is registered: only then is it woken for new lanes."""
        await self._registered.wait()
        await super().run()

    async def tick(self) -> float | None:
        """Maintains the lanes unless another worker did, and learns which have jobs."""
        await self._tick()
        return CALM if self._watched and not self._names else None

    async def _tick(self) -> None:
        tended = await self._store.tend(
            recovers=self._check is not None,
            guard_ms=round(self.interval * GUARD),
            outage=self._outage,
        )
        version, ready, busy = await self._store.look()
        if version != self.version:
            self._names = set(await self._store.names())
            self.version = version
        still = set(ready)  # in the backlog, the lane that has waited longest comes first
        self._backlog = {lane: None for lane in self._backlog if lane in still}
        self._refit(ready)
        if self._backlog:
            self._make_room()
        if self._is_news:  # the current wait does not include the new lane
            await self._store.wake(self._worker_id)
        if not tended.ran:
            return
        # After the choice of lanes, so that an error here does not keep the worker from its jobs.
        await self._recover({*busy, *tended.gated})
        for lane in tended.expired:
            await self._store.open(lane).expire()
        for lane in tended.gated:
            if (gates := self._store.open(lane).gates) is not None:
                await gates.tick()
        await self._sweep_notes()
        if not self._watched:
            await self._scan()

    async def _sweep_notes(self) -> None:
        for _ in range(SWEEPS):
            self._notes_cursor, _dropped = await self._store.sweep_ids(self._notes_cursor)
            if self._notes_cursor == "0":
                return

    async def _scan(self) -> None:
        for _ in range(SCANS):
            self._cursor, found = await self._store.scan(self._cursor, [self._store])
            for _, lane in found:
                await self.enter(lane)
            if self._cursor == "0":
                return

    async def enter(self, lane: str) -> None:
        """Registers a lane that a peer has made, unless it is known."""
        if lane not in self._names and await self._store.enter(lane):
            log.info("queue %s: a peer has made lane %s", self.queue, lane)

    async def _recover(self, lanes: Iterable[str]) -> None:
        if self._check is None:
            return
        now = asyncio.get_running_loop().time()
        self._checks = {
            lane: self._checks.get(lane) or (self._check(self._store.open(lane)), now) for lane in lanes
        }
        for lane, (check, due) in list(self._checks.items()):
            if due <= now:
                pause = await check.tick()
                self._checks[lane] = check, now + (check.interval if pause is None else pause)
