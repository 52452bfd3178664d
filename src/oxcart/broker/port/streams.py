"""The waits of a client: for jobs, events and requests to cancel."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Protocol

from oxcart.model.event import Event

if TYPE_CHECKING:
    from oxcart.broker.cancellations import CancelRequest
    from oxcart.broker.waiting import Popped

#: The place of an event among those of all lanes of a queue: its ms, its number within them, and its lane.
LanePlace = tuple[int, int, str]


class EventStream(Protocol):
    """The events of one queue."""

    async def last_id(self) -> str:
        """Returns the id of the newest event, ``0-0`` for none."""

    async def read(self, since: str, block: float) -> list[Event]:
        """Returns the events after an id; waits for one for so many seconds."""

    def backwards(self) -> AsyncIterator[Event]:
        """Yields the events that are still there, newest first."""

    async def close(self) -> None:
        """Ends reads in flight."""


class WorkWait(Protocol):
    """A worker's wait for jobs of some queues."""

    @property
    def connections_made(self) -> int:
        """How often the connection that blocks was made."""

    async def connect(self) -> None:
        """Makes the connections that are missing."""

    async def ping(self) -> None:
        """Keeps the connections while there is nothing to wait for."""

    async def wait(self, queues: Iterable[int], beside: Iterable[bytes], seconds: float) -> Popped | None:
        """Waits for jobs of queues, by their indexes, and for other keys."""

    def queue_of(self, popped: Popped) -> int:
        """Returns the index of the queue that has jobs."""

    async def put_back(self, popped: Popped) -> None:
        """Puts the wake-up back for another worker."""

    async def close(self) -> None:
        """Closes the connections."""


class Inbox(Protocol):
    """Receives requests to cancel running jobs."""

    async def receive(self, seconds: float) -> tuple[int, CancelRequest] | None:
        """Waits for a request; returns the number of its queue and the request, or None."""

    async def close(self) -> None:
        """Closes the connection."""
