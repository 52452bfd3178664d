"""The blocking waits of a worker: for jobs in idle queues, and for requests to cancel its jobs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from oxcart.broker.connection import Reconnect
from oxcart.engine.cancellations import Cancellations
from oxcart.engine.claims import Claims
from oxcart.engine.mesh import Mesh
from oxcart.engine.running import RunningJob
from oxcart.engine.station import Station
from oxcart.engine.waiter import CHECKED, CHECKS, SPAN, Waiter, by_slot


class Listeners:
    """The waiters and the cancellation listeners of one worker.

    Args:
        name: The worker's name.
        mesh: Knows the lanes to wait for and the jobs that run.
        claims: Is woken when jobs arrive.
        clock: The clock of ``Claims``.
        reconnect: Pauses between attempts to reach a lost server.
        stop: Receives a cancelled job, the reason, and whether the job has ended by force.
        on_state: Receives whether the server can be reached.
    """

    def __init__(
        self,
        name: str,
        *,
        mesh: Mesh,
        claims: Claims,
        clock: Callable[[], int],
        reconnect: Reconnect,
        stop: Callable[[RunningJob, str, bool], None],
        on_state: Callable[[bool], None],
    ) -> None:
        self._name = name
        self._mesh = mesh
        self._claims = claims
        self._clock = clock
        self._reconnect = reconnect
        self._stop = stop
        self._on_state = on_state
        self._waiters: list[Waiter] = []
        self._cancellations: list[Cancellations] = []

    def take_in(self, stations: Sequence[Station]) -> dict[str, list[Coroutine[Any, Any, None]]]:
        """Makes the listeners of some queues; returns what they run, by the names of the tasks."""
        groups = [
            places[start : start + SPAN]
            for places in by_slot([station.broker for station in stations])
            for start in range(0, len(places), SPAN)
        ]
        waiters = [self._waiter([stations[at] for at in places]) for places in groups]
        cancellations = Cancellations(
            {station.index: station.broker for station in stations},
            held=self._mesh.held,
            stop=self._stop,
            reconnect=self._reconnect,
        )
        self._waiters += waiters
        self._cancellations.append(cancellations)
        return {
            "oxcart-waiter": [waiter.run() for waiter in waiters],
            "oxcart-cancellations": [cancellations.run()],
        }

    def jobs_run(self) -> None:
        """Listens for requests to cancel, now that jobs run."""
        for cancellations in self._cancellations:
            cancellations.needed.set()

    def starved(self) -> None:
        """Waits for jobs, now that a queue is empty."""
        for waiter in self._waiters:
            waiter.needed.set()

    def look_soon(self, root: int, job: RunningJob) -> None:
        """Stops a job of a queue that lost its lease because a client cancelled it by force."""
        for cancellations in self._cancellations:
            if cancellations.serves(root):
                cancellations.look_soon(root, job)

    def _waiter(self, stations: list[Station]) -> Waiter:
        indexes = [station.index for station in stations]

        def wanted() -> tuple[list[int], int | None]:
            if not self._claims.has_room:
                return [], None
            now = self._clock()
            idle = [
                place
                for place in range(len(stations))
                if not stations[place].ready and stations[place].until_ms <= now
            ]
            dues = [due for place in idle if (due := stations[place].due_ms)]
            dues += self._mesh.dues(indexes)
            return idle, min(dues, default=None)

        def wake(place: int | None) -> None:
            if place is not None:
                self._claims.wake_station(stations[place])
                return
            now = self._clock()
            for station in (one for root in stations for one in (root, *root.family)):
                if station.until_ms <= now:
                    self._claims.wake_station(station)

        turns = itertools.cycle(stations)

        def check() -> None:
            if len(stations) <= CHECKED:
                wake(None)
                return
            now = self._clock()
            some = list(itertools.islice(turns, -(-len(stations) // CHECKS)))
            for station in {*some, *(one for one in stations if 0 < one.due_ms <= now)}:
                if station.until_ms <= now:
                    self._claims.wake_station(station)

        return Waiter(
            [station.broker for station in stations],
            self._name,
            wanted=wanted,
            wake=wake,
            checked=check,
            has_room=lambda: self._claims.has_room,
            clock=self._clock,
            reconnect=self._reconnect,
            on_state=self._on_state,
            beside=lambda: self._mesh.beside(indexes),
            is_settled=lambda: not self._claims.has_room or self._mesh.is_settled(indexes),
        )
