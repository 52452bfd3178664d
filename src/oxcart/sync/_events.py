"""The events of a queue, as a plain iterator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from oxcart import events as _events
from oxcart.model.event import Event

if TYPE_CHECKING:
    from oxcart.sync._queue import Queue


class QueueEvents:
    """The events of a queue, one after another, for ever. Not to be carried over a fork."""

    def __init__(self, queue: Queue, events: _events.QueueEvents) -> None:
        self.queue = queue
        self._events = events

    @property
    def position(self) -> str:
        """The id of the last event read; give it as ``since`` to go on from here."""
        return self._events.position

    def ready(self) -> None:
        """Fixes the position: every event after this call will be seen."""
        self.queue.run(self._events.ready())

    def read(self, block: float = _events.BLOCK) -> list[Event]:
        """The next events; waits for one for so many seconds, then returns an empty list."""
        return self.queue.run(self._events.read(block))

    def read_entries(self, block: float = _events.BLOCK) -> list[tuple[str, dict[str, str]]]:
        """As ``read``, with events of every name as they are stored: their ids, and their fields as text."""
        return self.queue.run(self._events.read_entries(block))

    def close(self) -> None:
        """Closes the connection."""
        self.queue.run(self._events.close())

    def __enter__(self) -> QueueEvents:
        self.ready()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Event]:
        while True:
            for event in self.queue.run(self._events._peek()):
                self._events.position = event.id
                if self._events._wants(event):
                    yield event
