"""The streams of a server, by their names in an offset.

A queue's event stream has the queue's name, any other the suffix behind a colon, which cannot be part of a
queue's name.

May touch: the server; reads only.
"""

from __future__ import annotations

from oxcart.broker.bullmq.broker import STATES
from oxcart.broker.bullmq.keys import Keys
from oxcart.spark.access import Access
from oxcart.spark.stream import EVENTS, Stream
from oxcart.spark.wire import Wire

#: What a queue keeps where nobody has said anything.
DEFAULT_KEPT = 10_000
_LISTS = ("wait", "paused", "active")


def stream_key(queue: str, suffix: str) -> str:
    """The name of a stream in an offset."""
    return queue if suffix == EVENTS else f"{queue}:{suffix}"


def split_key(key: str) -> tuple[str, str]:
    """Queue and suffix of a stream's name in an offset."""
    queue, _, suffix = key.partition(":")
    return queue, suffix or EVENTS


class Streams:
    """The streams of a server, on one connection per slot, for as long as the block lasts."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self.server = access.server()
        self._wires: dict[int | None, Wire] = {}

    def __enter__(self) -> Streams:
        return self

    def __exit__(self, *exc: object) -> None:
        for wire in self._wires.values():
            wire.close()

    def at(self, key: str) -> Stream:
        """A stream by its name in an offset."""
        queue, suffix = split_key(key)
        keys = self._access.keys(queue, self.server)
        return Stream(self._wire(keys), keys, suffix)

    def counts(self, queue: str) -> dict[str, int]:
        """How many jobs of a queue are in each state."""
        keys = self._access.keys(queue, self.server)
        commands = [("LLEN" if state in _LISTS else "ZCARD", keys.key(state)) for state in STATES]
        return dict(zip(STATES, self._wire(keys).pipeline(commands), strict=True))

    def kept(self, queue: str) -> int:
        """How many events a queue keeps."""
        keys = self._access.keys(queue, self.server)
        return int(self._wire(keys).call("HGET", keys.meta(), "opts.maxLenEvents") or DEFAULT_KEPT)

    def _wire(self, keys: Keys) -> Wire:
        slot = keys.slot() if self.server.is_cluster else None
        if slot not in self._wires:
            self._wires[slot] = Wire(self.server, slot)
        return self._wires[slot]
