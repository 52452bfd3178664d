"""Where a pipeline finds things on a server: what differs between the protocols, and nothing else.

Streams, offsets, bronze and all tables are the same for both. A layout says which queues there are, where
their streams lie, how they are measured and attached, how long the queues are, and who adds a job.

May touch: the server, through a wire; reads, and attaching.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from oxcart.broker.bridge import scripts as bridge
from oxcart.broker.bridge.keys import BridgeKeys
from oxcart.broker.bullmq import scripts as bullmq
from oxcart.broker.bullmq.broker import STATES
from oxcart.broker.bullmq.keys import Keys
from oxcart.broker.connection import Reconnect, Server
from oxcart.broker.discovery import find_queues
from oxcart.broker.factory import make_broker
from oxcart.spark.stream import ATTEMPTS, EVENTS
from oxcart.spark.wire import Wire

if TYPE_CHECKING:
    from oxcart.broker.keyring import KeyRing
    from oxcart.broker.link import Argument
    from oxcart.broker.port import ServedBroker

#: What a queue keeps where nobody has said anything.
DEFAULT_KEPT = 10_000
#: How often a server is tried that does not answer, by who looks for queues and by who adds jobs.
LOOKING = 3
ADDING = 5
_LISTS = ("wait", "paused", "active")
_READER = b"reader:"

Pick = Callable[[list[str]], list[str]]


class Layout(Protocol):
    """The streams of a protocol; ``suffixes`` are those that a queue has."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The streams of a queue: its events first."""
        ...

    def check(self, queue: str) -> None:
        """Refuses what cannot be a queue's name."""
        ...

    def wire(self, server: Server, queue: str) -> Wire:
        """A connection to the process that has a queue."""
        ...

    def queues(self, server: Server, names: Sequence[str], pick: Pick | None) -> list[str]:
        """The queues of these names, or those picked of all that there are; by the names of their streams."""
        ...

    def stream(self, queue: str, suffix: str) -> str:
        """The key of a stream."""
        ...

    def stride(self, wire: Wire, queue: str, suffix: str, *asked: Argument) -> Any:
        """Measures a stride of a stream: see ``stride.lua``."""
        ...

    def attach(self, wire: Wire, queue: str, *asked: Argument) -> Any:
        """Attaches a reader: see ``attach.lua``."""
        ...

    def detach(self, wire: Wire, queue: str, *asked: Argument) -> Any:
        """Ends a reader's attachment: see ``detach.lua``."""
        ...

    def readers(self, wire: Wire, queue: str) -> dict[str, int]:
        """The readers of a queue, each with the time until which it is attached, in ms."""
        ...

    def kept(self, wire: Wire, queue: str) -> int:
        """How many events a queue keeps."""
        ...

    def counts(self, server: Server, wire: Wire, queue: str) -> dict[str, int]:
        """How many jobs of a queue are in each state."""
        ...

    def broker(self, server: Server, queue: str, key_ring: KeyRing | None = None) -> ServedBroker:
        """Who adds jobs to a queue."""
        ...


@dataclass(frozen=True)
class BullMQLayout:
    """BullMQ's: a queue has its events, and records of attempts beside them; its lanes are queues too."""

    prefix: str
    tagged: bool = False
    suffixes: tuple[str, ...] = (EVENTS, ATTEMPTS)

    def keys(self, queue: str) -> Keys:
        """The keys of a queue."""
        return Keys(queue, self.prefix, self.tagged)

    def check(self, queue: str) -> None:
        """Refuses what cannot be a queue's name."""
        self.keys(queue)

    def wire(self, server: Server, queue: str) -> Wire:
        """A connection to the process that has a queue."""
        return Wire(server, self.keys(queue).slot() if self.tagged else None)

    def queues(self, server: Server, names: Sequence[str], pick: Pick | None) -> list[str]:
        """The queues of these names with their lanes, or those picked of all that there are."""
        if pick is not None:
            # Whoever runs the pipeline decides how long to wait for a server.
            few = Reconnect(attempts=LOOKING)
            return pick(asyncio.run(find_queues(server, self.prefix, few, lanes=True)))
        found = set(names)
        for name in names:
            with self.wire(server, name) as wire:
                lanes = wire.call("ZRANGE", self.keys(name).lanes(), 0, -1)
            found.update(f"{name}@{lane.decode('utf-8', 'replace')}" for lane in lanes)
        return sorted(found)

    def stream(self, queue: str, suffix: str) -> str:
        """The key of a stream."""
        return self.keys(queue).key(suffix)

    def stride(self, wire: Wire, queue: str, suffix: str, *asked: Argument) -> Any:
        """Measures a stride of a stream."""
        return wire.script(bullmq.load("stride"), self.keys(queue).meta(), suffix, *asked)

    def attach(self, wire: Wire, queue: str, *asked: Argument) -> Any:
        """Attaches a reader."""
        return wire.script(bullmq.load("attach"), self.keys(queue).meta(), *asked)

    def detach(self, wire: Wire, queue: str, *asked: Argument) -> Any:
        """Ends a reader's attachment."""
        return wire.script(bullmq.load("detach"), self.keys(queue).meta(), *asked)

    def readers(self, wire: Wire, queue: str) -> dict[str, int]:
        """The readers of a queue."""
        flat = wire.call("ZRANGE", self.keys(queue).key("ox:readers"), 0, -1, "WITHSCORES")
        return {flat[i].decode(): int(float(flat[i + 1])) for i in range(0, len(flat), 2)}

    def kept(self, wire: Wire, queue: str) -> int:
        """How many events a queue keeps."""
        return int(wire.call("HGET", self.keys(queue).meta(), "opts.maxLenEvents") or DEFAULT_KEPT)

    def counts(self, server: Server, wire: Wire, queue: str) -> dict[str, int]:
        """How many jobs of a queue are in each state."""
        keys = self.keys(queue)
        commands = [("LLEN" if state in _LISTS else "ZCARD", keys.key(state)) for state in STATES]
        return dict(zip(STATES, wire.pipeline(commands), strict=True))

    def broker(self, server: Server, queue: str, key_ring: KeyRing | None = None) -> ServedBroker:
        """Who adds jobs to a queue."""
        few = Reconnect(attempts=ADDING)
        return make_broker("bullmq", server, queue, prefix=self.prefix, reconnect=few, key_ring=key_ring)


@dataclass(frozen=True)
class BridgeLayout:
    """Bridge's: a job type is a queue, its events carry what is known of runs, a namespace is one slot."""

    namespace: str
    tagged: bool = False
    suffixes: tuple[str, ...] = (EVENTS,)

    def keys(self, queue: str) -> BridgeKeys:
        """The keys of a job type."""
        return BridgeKeys(queue, self.namespace, self.tagged)

    def check(self, queue: str) -> None:
        """Refuses what cannot be a job type."""
        self.keys(queue)

    def wire(self, server: Server, queue: str = "any") -> Wire:
        """A connection to the process that has the namespace."""
        return Wire(server, self.keys(queue).slot() if self.tagged else None)

    def queues(self, server: Server, names: Sequence[str], pick: Pick | None) -> list[str]:
        """The types of these names, or those picked of all that clients of ours have seen."""
        if pick is None:
            return sorted(names)
        with self.wire(server) as wire:
            found = wire.call("SMEMBERS", self.keys("any").types())
        return pick([name.decode("utf-8", "replace") for name in found])

    def stream(self, queue: str, suffix: str) -> str:
        """The key of a stream."""
        return self.keys(queue).events()

    def stride(self, wire: Wire, queue: str, suffix: str, *asked: Argument) -> Any:
        """Measures a stride of a stream."""
        return self._script(wire, "stride", queue, *asked)

    def attach(self, wire: Wire, queue: str, *asked: Argument) -> Any:
        """Attaches a reader."""
        return self._script(wire, "attach", queue, *asked)

    def detach(self, wire: Wire, queue: str, *asked: Argument) -> Any:
        """Ends a reader's attachment."""
        return self._script(wire, "detach", queue, *asked)

    def readers(self, wire: Wire, queue: str) -> dict[str, int]:
        """The readers of a type."""
        flat = wire.call("HGETALL", self.keys(queue).reading())
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return {
            name.removeprefix(_READER).decode(): int(until)
            for name, until in pairs
            if name.startswith(_READER)
        }

    def kept(self, wire: Wire, queue: str) -> int:
        """How many events a type keeps."""
        return int(wire.call("HGET", self.keys(queue).reading(), "keep") or DEFAULT_KEPT)

    def counts(self, server: Server, wire: Wire, queue: str) -> dict[str, int]:
        """How many jobs of a type are in each state; waiting ones as far as clients of ours know of them."""
        return asyncio.run(self._count(server, queue))

    async def _count(self, server: Server, queue: str) -> dict[str, int]:
        broker = self.broker(server, queue)
        try:
            return dict(await broker.counts())
        finally:
            await broker.close()

    def broker(self, server: Server, queue: str, key_ring: KeyRing | None = None) -> ServedBroker:
        """Who adds jobs to a type."""
        few = Reconnect(attempts=ADDING)
        return make_broker("bridge", server, queue, prefix=self.namespace, reconnect=few, key_ring=key_ring)

    def _script(self, wire: Wire, verb: str, queue: str, *asked: Argument) -> Any:
        return wire.script(bridge.load(verb), self.keys(queue).waiting(), queue, *asked)
