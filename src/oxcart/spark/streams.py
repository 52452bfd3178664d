"""The streams of a server, by their names in an offset.

A queue's event stream has the queue's name, that of records their suffix behind a colon.

May touch: the server; reads only.
"""

from __future__ import annotations

from oxcart.spark.access import Access
from oxcart.spark.stream import ATTEMPTS, EVENTS, Stream
from oxcart.spark.wire import Wire

_RECORDS = f":{ATTEMPTS}"


def stream_key(queue: str, suffix: str) -> str:
    """The name of a stream in an offset."""
    return queue if suffix == EVENTS else f"{queue}:{suffix}"


def split_key(key: str) -> tuple[str, str]:
    """Queue and suffix of a stream's name in an offset."""
    queue = key.removesuffix(_RECORDS)
    return queue, EVENTS if queue == key else ATTEMPTS


class Streams:
    """The streams of a server, on one connection per slot, for as long as the block lasts."""

    def __init__(self, access: Access) -> None:
        self.server = access.server()
        self._layout = access.layout(self.server)
        self._wires: dict[int | None, Wire] = {}

    def __enter__(self) -> Streams:
        return self

    def __exit__(self, *exc: object) -> None:
        for wire in self._wires.values():
            wire.close()

    def at(self, key: str) -> Stream:
        """A stream by its name in an offset."""
        queue, suffix = split_key(key)
        return Stream(self._wire(queue), self._layout, queue, suffix)

    def counts(self, queue: str) -> dict[str, int]:
        """How many jobs of a queue are in each state."""
        return self._layout.counts(self.server, self._wire(queue), queue)

    def kept(self, queue: str) -> int:
        """How many events a queue keeps."""
        return self._layout.kept(self._wire(queue), queue)

    def _wire(self, queue: str) -> Wire:
        made = self._layout.wire(self.server, queue)
        return self._wires.setdefault(made.slot, made)  # nothing is opened before its first call
