"""One queue or lane that a worker claims from, as the worker sees it."""

from __future__ import annotations

from oxcart.broker.port import Outcome, ServedBroker
from oxcart.engine.running import RunningJob

#: Lanes that one claim chooses between at most.
CHOICE = 32


class Station:
    """One queue or lane, from the worker's view.

    Attributes:
        until_ms: Until when a rate limit keeps the worker from claiming, unless a marker wakes it.
        due_ms: When the next delayed job is due, by the clock of ``Claims``; in the past if many are due; 0
            for none.
        closed: Whether it was paused or at its concurrency at the last claim. An outcome may make room.
        calls: Calls in flight.
        stuck: For a root: calls for it and its lanes that hang. While there is one, no other is made: each
            would ask for the same slots, and the server would answer all of them when it is back.
        asked_at: When the worker last claimed from it, in loop time.
        wakes: How often it was woken. A reply to a call from before the last wake does not show that it is
            empty: the job may have come after the call.
        root: The base queue of a lane, or itself.
        family: For a root: its lanes that the worker claims from.
        turn: For a root: how many calls its family has had.
        owing: For a root: the stations of its family with outcomes to commit, the oldest first.
        retired: For a lane: whether the worker has stopped claiming from it. Its claimed jobs still end.
    """

    def __init__(self, index: int, broker: ServedBroker, root: Station | None = None) -> None:
        self.index = index
        self.broker = broker
        self.root = root or self
        self.family: list[Station] = []
        self.turn = 0
        self.owing: dict[Station, None] = {}
        self.retired = False
        self.outcomes: list[tuple[RunningJob, Outcome]] = []
        self._ready = True
        self._ring: dict[Station, None] | None = None
        self.until_ms = 0
        self.due_ms = 0
        self.closed = False
        self.active = 0
        self.calls = 0
        self.stuck = 0
        self.asked_at = 0.0
        self.wakes = 0

    @property
    def ready(self) -> bool:
        """Whether a claim may find jobs."""
        return self._ready

    @ready.setter
    def ready(self, ready: bool) -> None:
        self._ready = ready
        if self._ring is not None:
            if not ready:
                self._ring.pop(self, None)
            elif self not in self._ring:
                self._ring[self] = None

    def enter(self, ring: dict[Station, None]) -> None:
        """Joins the stations that may have jobs, in the order of their turns."""
        self._ring = ring
        self.ready = self._ready

    @property
    def lane(self) -> str:
        """Its name in a claim that chooses between lanes."""
        return "base" if self.root is self else self.broker.lane or ""

    def wake(self) -> None:
        """Marks that there may be jobs."""
        self.ready = not self.retired
        self.wakes += 1

    def choice(self) -> list[Station]:
        """Returns the stations of its family that may have jobs, itself first, then in turn."""
        root = self.root
        all_of_them = [root, *root.family]
        turn = all_of_them.index(self) if not self.retired else 0
        ready = [one for one in all_of_them[turn:] + all_of_them[:turn] if one.ready]
        return ready[:CHOICE]
