"""The part of a broker for the lanes of a queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from oxcart.broker.port.results import Tended
from oxcart.broker.port.streams import LanePlace
from oxcart.broker.port.values import Outage
from oxcart.model.event import Event
from oxcart.model.job import Job
from oxcart.model.target import Abilities

if TYPE_CHECKING:
    from oxcart.broker.port.broker import ServedBroker


class Lanes(Protocol):
    """The lanes of one queue. A lane has none of its own."""

    def open(self, lane: str) -> ServedBroker:
        """Returns the broker of a lane, on the queue's connection."""

    async def names(self) -> list[str]:
        """Returns the lanes, by their names within the queue."""

    async def counts(self) -> dict[str, dict[str, int]]:
        """Returns how many jobs of each lane are in each wire state."""

    async def page(self, states: Sequence[str], first: int, limit: int, *, oldest: bool = False) -> list[Job]:
        """Reads jobs of some wire states, from lane to lane behind those of the queue itself."""

    async def look(self) -> tuple[int, list[str], list[str]]:
        """Returns a number that grows with every new or removed lane, the ready lanes, and the busy ones."""

    async def enter(self, lane: str) -> bool:
        """Registers a lane that a peer has made; returns whether it was new."""

    async def tend(
        self,
        *,
        recovers: bool = True,
        guard_ms: int = ...,
        idle_ms: int = ...,
        outage: Outage | None = None,
    ) -> Tended:
        """Maintains all lanes, in steps, unless another worker did so just now.

        Args:
            recovers: Whether this worker recovers stalled jobs as well. A worker that does not keeps no other
                worker from it.
            guard_ms: For how many ms it keeps others from doing the same.
            idle_ms: After how many ms an empty lane is removed.
            outage: After which silence the server counts as having been away; None to give no sign of life.
        """

    async def sweep_ids(self, cursor: str) -> tuple[str, int]:
        """Drops entries of custom ids whose jobs are gone, in one step.

        Returns:
            The next cursor (``0`` at the end), and how many it dropped.
        """

    async def read_events(self, after: LanePlace) -> list[tuple[LanePlace, Event]]:
        """Reads events of all lanes behind a place, in order; those of the present ms are left for later.

        Sealed values are opened; a value that does not open stays sealed.
        """

    def fits(self, lane: str, abilities: Abilities) -> bool:
        """Returns whether a worker may take jobs of a lane; a name that cannot be parsed fits none."""

    def wake_key(self, worker_id: str) -> bytes:
        """Returns the sorted set of the lanes that a worker is woken for."""

    async def wake(self, worker_id: str) -> None:
        """Ends a worker's wait for markers without naming a lane."""

    async def versions(self, queues: Sequence[Lanes]) -> list[int]:
        """Returns the first number of ``look`` for some queues of this server, by one command."""

    async def scan(self, cursor: str, queues: Sequence[Lanes]) -> tuple[str, list[tuple[int, str]]]:
        """Makes one step through the server's keys, for lanes of some queues with the same prefix.

        Returns:
            The next cursor (``0`` at the end), and lanes, each behind the index of its queue.
        """
