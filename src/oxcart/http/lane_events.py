"""The events of a queue's lanes, merged into one order.

A lane has an event stream of its own. All of them are read together, so that a reader needs one position
however many lanes there are. The order is that of time, then of the number within a millisecond, then of the
lane's name. Events of the present millisecond are left for the next read, because more of them may follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oxcart.broker.port.streams import LanePlace
from oxcart.model.event import Event

if TYPE_CHECKING:
    from oxcart.queue import Queue


class LaneEvents:
    """The events of all lanes of a queue.

    Args:
        queue: The queue.
        since: The place of the last event already seen; None for only new ones.

    Attributes:
        position: The place of the last event read; None before the first read of a queue without lanes.
    """

    def __init__(self, queue: Queue, since: LanePlace | None = None) -> None:
        self._queue = queue
        self.position = since

    async def ready(self) -> LanePlace:
        """Fixes the position: every event after this call will be read."""
        if self.position is None:
            self.position = (await self._queue._core.broker.now(), 0, "")
        return self.position

    async def read(self) -> list[tuple[LanePlace, Event]]:
        """Returns the next events with their places, without waiting."""
        broker = self._queue._core.broker
        if broker.lanes is None:
            return []
        found = await broker.lanes.read_events(await self.ready())
        if found:
            self.position = found[-1][0]
        return found
