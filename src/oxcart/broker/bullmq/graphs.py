"""Graphs on BullMQ's key layout: jobs that wait for others are added in one call, and told of their ends.

All queues of a graph are in one slot of one server, so the broker of any of them can add all of it. What a
gate is, and which keys there are, is said in ``lua/parts/gates.lua`` and docs/decisions/42.

May touch: the server, through a queue's broker.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oxcart.broker.bullmq import codec
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.flows import MOST_BYTES
from oxcart.broker.bullmq.keys import Keys
from oxcart.broker.bullmq.scripts import load
from oxcart.model.errors import CrossSlotError, ValidationError, error_for_code
from oxcart.model.graph import Existing, Kind, Node, arrange
from oxcart.model.names import HIDDEN

#: Jobs that one call tells at most: about 3 ms of the server's time.
ROOM = 250
#: Waiting gates that one call looks at for jobs that have ended without telling them.
STEP = 100
#: How many ticks there are between two such looks.
LOOK_EVERY = 5

_KINDS = {Kind.AFTER: "a", Kind.AFTER_ANY: "y"}


class AddedNode(msgspec.Struct, frozen=True):
    """What became of a job of a graph: its id, and whether this add made it."""

    id: str
    created: bool


async def add_graph(
    broker: BullMQBroker, nodes: Sequence[Node], *, timeout: float | None = None, replicated: bool = False
) -> list[AddedNode]:
    """Adds the jobs of a graph, all of them or none; `broker` is that of any of its queues.

    Raises:
        ValidationError: Something is wrong with the graph; nothing was written.
        CrossSlotError: Its queues are in different slots of the cluster; nothing was written.
        UnknownDependency: A job to wait for does not exist; nothing was written.
        ChainTooLong: Too many jobs would wait in a row; nothing was written.
    """
    order = arrange(nodes)
    queues = _Queues(broker)
    now = broker.clock.argument
    jobs: list[bytes | str | int] = []
    edges: list[bytes | str | int] = []
    ids: dict[int, str] = {}
    weight = count = 0
    turn = {number: at for at, number in enumerate(order, 1)}
    for number in order:
        node = nodes[number]
        ids[number], job = codec.encode_job(
            node.name, node.data, node.options, now, waits=True, sealer=node.sealer
        )
        jobs += [queues.number(node.prefix, node.queue), *job]
        weight += len(job[2]) + len(job[3])  # type: ignore[arg-type]
        for edge in node.edges:
            count += 1
            if isinstance(edge.of, Existing):
                place = queues.number(edge.of.prefix, edge.of.queue)
                edges += [turn[number], _KINDS[edge.kind], 0, place, edge.of.id]
            else:
                edges += [turn[number], _KINDS[edge.kind], turn[edge.of], 0, ""]
    if weight > MOST_BYTES:
        raise ValidationError("graph", f"at most {MOST_BYTES} bytes of payloads", weight)
    args = [now, len(queues.prefixes), *queues.prefixes, len(order), *jobs, count, *edges]
    status, detail = await broker.caller.once(
        load("add_graph"), broker.keys.meta(), *args, timeout=timeout, replicated=replicated
    )
    if status < 0:
        raise error_for_code(status, detail.decode("utf-8", "surrogateescape"), "add")
    return [AddedNode(ids[number], detail[turn[number] - 1] == 1) for number in range(len(nodes))]


async def dependents(broker: BullMQBroker, job_id: str) -> dict[str, Kind]:
    """The jobs that wait for a job of this queue, by their full keys; none once it has ended."""
    name = job_id.replace("%", "%25").replace(":", "%3A")
    gate = f"{broker.keys.base}{HIDDEN}:{name}"
    kinds = {value.encode(): kind for kind, value in _KINDS.items()}
    found: dict[str, Kind] = {}
    cursor = b"0"
    while True:
        cursor, flat = await broker.caller.command("HSCAN", gate, cursor, "MATCH", "d:*", "COUNT", 500)
        pairs = zip(flat[::2], flat[1::2], strict=True)
        found |= {key[2:].decode("utf-8", "surrogateescape"): kinds[kind] for key, kind in pairs}
        if cursor == b"0":
            return dict(sorted(found.items()))


class _Queues:
    """The queues of a graph by their numbers, all in one slot."""

    def __init__(self, broker: BullMQBroker) -> None:
        self._broker = broker
        self._numbers: dict[tuple[str, str], int] = {}
        self.prefixes: list[str] = []

    def number(self, prefix: str, queue: str) -> int:
        named = (prefix, queue)
        if named not in self._numbers:
            broker = self._broker
            keys = Keys(queue, prefix, broker.keys.tagged)
            if broker.slot is not None and keys.slot() != broker.slot:
                raise CrossSlotError(
                    f"a graph over the queues {broker.queue!r} and {queue!r} is in two slots of the cluster; "
                    "give them a prefix with a hash tag that they share, e.g. prefix='{bull}'"
                )
            self.prefixes.append(keys.key(""))
            self._numbers[named] = len(self.prefixes)
        return self._numbers[named]


class GateKeeper:
    """Settles the gates that jobs of a queue wait behind.

    Attributes:
        hidden: The hidden queues that were known at the last look, as the beginnings of their keys.
    """

    def __init__(self, broker: BullMQBroker) -> None:
        self._broker = broker
        self._looked: dict[str, int] = {}
        self._ticks = 0
        self.hidden: tuple[str, ...] = ()

    async def tick(self) -> int:
        """Looks for gates, and settles those whose jobs have ended; returns how many jobs were told."""
        found = await self._broker.caller.command("SMEMBERS", self._broker.keys.gates())
        self.hidden = tuple(sorted(raw.decode("utf-8", "surrogateescape") for raw in found))
        look = STEP if self._ticks % LOOK_EVERY == 0 else 0
        self._ticks += 1
        return sum([await self.settle(hidden, look=look) for hidden in self.hidden])

    async def settle(self, hidden: str, *, look: int = 0) -> int:
        """Settles the gates of one hidden queue; returns how many jobs were told.

        Args:
            hidden: The beginning of its keys.
            look: At how many of the gates that wait to look as well, from where the last look ended.
        """
        broker = self._broker
        told = 0
        while True:
            args = (broker.clock.argument, hidden, ROOM, self._looked.get(hidden, 0), look)
            answer: list[int] = await broker.caller.again(load("settle"), broker.keys.meta(), *args)
            step, left, at = answer
            told += step
            if look:
                self._looked[hidden] = at
            if not left or not step:
                return told
            look = 0

    async def repair(self) -> int:
        """Looks after jobs of the queue whose gates were lost; returns how many dependencies were mended."""
        broker, mended, at = self._broker, 0, 0
        while True:
            args = (broker.clock.argument, at, STEP)
            answer: list[int] = await broker.caller.again(load("repair"), broker.keys.meta(), *args)
            mended, at = mended + answer[0], answer[1]
            if not at:
                return mended
