"""The lanes of a queue, as one worker sees them: which fit it, which have work, and what must be tended.

A worker that was told its abilities takes jobs from its queue and from every lane that fits it. It waits for
the markers of at most 32 lanes. A new lane is told to it under its wake key; one that fits more lanes than it
can wait for is told of every add to a lane. What was missed is found at the tick.

Once a second one of the workers tends all lanes of the queue: lets due jobs through, ends those whose
lifetimes are over, settles gates, removes lanes that stay empty, drops notes of ids whose jobs are gone, and
scans for lanes that peers have made.

May touch: the server.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping

from oxcart.broker.bullmq import registry
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.graphs import GateKeeper
from oxcart.broker.bullmq.lanes import GUARD
from oxcart.broker.factory import is_native
from oxcart.broker.port import Outage
from oxcart.engine.claims import Claims, Station
from oxcart.engine.recovery import SIGNS
from oxcart.engine.waiter import Taker
from oxcart.model.errors import BrokerError
from oxcart.model.target import Abilities

log = logging.getLogger("oxcart.lanes")

#: Seconds between ticks.
TICK = 1.0
#: Markers that one blocking call waits for at most.
MARKERS = 32
#: Steps of the scan for lanes of peers per tick, each of some hundred keys.
SCANS = 20
#: Steps of the sweep of notes of custom ids per tick, each of about a hundred.
SWEEPS = 10


class Lanes:
    """The lanes of one queue.

    Args:
        root: The queue.
        worker_id: Names the worker's wake key.
        abilities: What the worker can do now.
        claims: Claims from the lanes that fit.
        open_station: Makes the station of a lane.
        is_held: Whether the worker has jobs of a station in hand.
        on_crowded: Told when `is_crowded` changes.
        most: How many markers it may wait for.
        recovered: Told the ids that came back from lost workers.
        max_stalled: How often a job may stall before it is failed.
        stalled_interval: Seconds between looks for such jobs; None where this worker does not look.
        outage: When the server counts as having been away; None where this worker does not look.
    """

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
        recovered: Callable[[str, list[str]], None],
        max_stalled: int,
        stalled_interval: float | None,
        outage: Outage | None = None,
    ) -> None:
        assert is_native(root.broker)
        self._root = root
        self._broker: BullMQBroker = root.broker
        self._store = root.broker.lanes
        self._worker_id = worker_id
        self._abilities = abilities
        self._claims = claims
        self._open_station = open_station
        self._is_held = is_held
        self._on_crowded = on_crowded
        self._most = most
        self._recovered = recovered
        self._max_stalled = max_stalled
        self._stalled_interval = stalled_interval
        self._outage = outage if stalled_interval is not None else None
        self._next_repair: dict[str, float] = {}
        self._wake_key = self._broker.keys.wake(worker_id).encode()
        self._version = -1
        self._names: set[str] = set()
        self._fits: dict[str, bool] = {}
        self._stations: dict[str, Station] = {}  # every lane that was ever claimed from
        self._live: dict[str, Station] = {}  # those that are, the one that had work last at the end
        self._backlog: dict[str, None] = {}  # lanes with work that cannot be waited for yet
        self._dice = random.Random(worker_id)
        self._is_news = False
        self._gates: dict[str, GateKeeper] = {}
        self._checks: dict[str, float] = {}
        self._cursor = self._notes_cursor = "0"
        self._changed = asyncio.Event()
        #: Whether more lanes fit the worker than it can wait for.
        self.is_crowded = False

    # -- what the worker's other parts ask

    def beside(self, now: int) -> Mapping[bytes, Taker]:
        """The keys to wait for beside the queue's own marker, and who takes what is popped from them."""
        if self._root.until_ms > now:
            return {}
        self._is_news = False
        waits: dict[bytes, Taker] = {self._wake_key: self._heard}
        for lane, station in self._live.items():
            if not station.ready and station.until_ms <= now:
                waits[station.broker.keys.marker().encode()] = self._taker(lane, station)
        return waits

    def dues(self) -> Iterable[int]:
        """When delayed jobs of lanes are due that are waited for."""
        return (one.due_ms for one in self._live.values() if one.due_ms and not one.ready)

    def reconsider(self) -> None:
        """Looks again which lanes fit: the worker's abilities have changed."""
        self._fits.clear()
        self._refit(())
        self._changed.set()

    def _taker(self, lane: str, station: Station) -> Taker:
        def take(_: bytes) -> bool:
            # It may have been left since the wait began: then its marker is for somebody else.
            if lane not in self._live or not self._claims.has_room:
                return False
            self._use(lane, station)
            return True

        return take

    def _heard(self, member: bytes) -> bool:
        lane = member.decode("utf-8", "surrogateescape")
        if lane:
            self._names.add(lane)
            self._refit((lane,))
        return True

    # -- which lanes

    def _is_fit(self, lane: str) -> bool:
        fits = self._fits.get(lane)
        if fits is None:
            fits = self._fits[lane] = registry.fits(self._broker, lane, self._abilities())
        return fits

    def _refit(self, ready: Iterable[str]) -> None:
        """Claims from the lanes that fit, as many as can be waited for."""
        fitting = [lane for lane in self._names if self._is_fit(lane)]
        for lane in [lane for lane in self._live if lane not in self._names or not self._is_fit(lane)]:
            self._leave(lane)
        self._set_crowded(len(fitting) > self._most)
        self._backlog = {lane: None for lane in self._backlog if lane in self._names and self._is_fit(lane)}
        with_work = [lane for lane in ready if lane in self._names and self._is_fit(lane)]
        self._dice.shuffle(with_work)  # else all workers would crowd into the same lanes
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
        """Claims from lanes that have work and no place yet, in the place of those that have none."""
        while self._backlog:
            lane = next(iter(self._backlog))
            if lane not in self._live and not self._join(lane):
                return
            del self._backlog[lane]

    def _make_room(self) -> None:
        """Takes places from lanes that have work for those that have none: else these might wait for ever."""
        most = min(len(self._backlog), max(1, self._most // 4))
        for lane in [lane for lane, one in self._live.items() if not one.calls][:most]:
            self._leave(lane)
        self.refill()

    def _use(self, lane: str, station: Station) -> None:
        self._live[lane] = self._live.pop(lane)
        self._claims.wake_station(station)

    def _join(self, lane: str) -> bool:
        if len(self._live) >= self._most:
            for other, idle in self._live.items():  # the one that had no work for the longest time
                if not idle.ready and not idle.calls and not self._is_held(idle):
                    self._leave(other)
                    break
            else:
                return False  # all have work
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
        """Ticks until cancelled."""
        while True:
            try:
                await self.tick()
            except BrokerError as error:
                log.debug("queue %s: its lanes cannot be looked after now: %s", self._broker.queue, error)
            self._changed.clear()
            try:
                async with asyncio.timeout(self._pause()):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _pause(self) -> float:
        """Seconds between ticks, each of which gives signs of life."""
        return TICK if self._outage is None else min(TICK, self._outage.silence_ms / 1000 / SIGNS)

    async def tick(self) -> None:
        """Tends the lanes unless somebody else did, and sees which have work."""
        tended = await self._store.tend(
            recovers=self._stalled_interval is not None,
            guard_ms=min(GUARD, round(self._pause() * 950)),
            outage=self._outage,
        )
        version, ready, busy = await self._store.look()
        now = asyncio.get_running_loop().time()
        if version != self._version:
            self._names = set(await self._store.names())
            self._version = version
        still = set(ready)  # of those without a place, who has waited longest comes first
        self._backlog = {lane: None for lane in self._backlog if lane in still}
        self._refit(ready)
        if self._backlog:
            self._make_room()
        if self._is_news:  # the wait under way does not know of a lane that came
            await self._broker.caller.command("ZADD", self._wake_key, 0, "")
        if not tended.ran:
            return
        # Behind the worker's own lanes: what is refused here must not keep it from them.
        await self._recover(busy)
        for lane in tended.expired:
            await self._store.open(lane).expire()
        self._gates = {
            lane: self._gates.get(lane) or GateKeeper(self._store.open(lane)) for lane in tended.gated
        }
        for lane, gates in self._gates.items():
            await gates.tick()
            await self._repair(lane, gates, now)
        await self._sweep_notes()
        await self._scan()

    async def _sweep_notes(self) -> None:
        for _ in range(SWEEPS):
            self._notes_cursor, _dropped = await self._store.sweep_ids(self._notes_cursor)
            if self._notes_cursor == "0":
                return

    async def _scan(self) -> None:
        for _ in range(SCANS):
            self._cursor, found = await self._store.scan(self._cursor)
            for lane in found:
                if lane not in self._names and await self._store.enter(lane):
                    log.info("queue %s: a peer has made lane %s", self._broker.queue, lane)
            if self._cursor == "0":
                return

    async def _repair(self, lane: str, gates: GateKeeper, now: float) -> None:
        if self._stalled_interval is None or now < self._next_repair.get(lane, 0.0):
            return
        self._next_repair = {one: at for one, at in self._next_repair.items() if one in self._gates}
        self._next_repair[lane] = now + self._stalled_interval
        if mended := await gates.repair():
            queue = f"{self._broker.queue}@{lane}"
            log.warning("queue %s: %d dependencies had lost their gates", queue, mended)

    async def _recover(self, busy: list[str]) -> None:
        now = asyncio.get_running_loop().time()
        if self._stalled_interval is None:
            return
        self._checks = {lane: self._checks.get(lane, now) for lane in busy}
        for lane, due in list(self._checks.items()):
            if due > now:
                continue
            found = await self._store.open(lane).recover(
                max_stalled=self._max_stalled,
                interval_ms=max(1, round(self._stalled_interval * 1000)),
                outage=self._outage,
            )
            waits = found.wait_ms or not found.ran
            wait = found.wait_ms / 1000 if waits else self._stalled_interval
            self._checks[lane] = now + wait
            if found.ids:
                log.warning(
                    "queue %s: %d jobs taken back from lost workers",
                    f"{self._broker.queue}@{lane}",
                    len(found.ids),
                    extra={"job_ids": found.ids[:100]},
                )
                self._recovered(self._broker.queue, found.ids)
