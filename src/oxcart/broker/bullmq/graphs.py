"""Graphs on BullMQ's key layout: adds jobs that wait for others in one call.

All queues of a graph are in one slot of one server, so the broker of any of them can add all of it.
``lua/parts/gates.lua`` and docs/decisions/42 describe gates and their keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from oxcart.broker.bullmq import codec
from oxcart.broker.bullmq.flows import MOST_BYTES
from oxcart.broker.bullmq.keys import Keys
from oxcart.broker.bullmq.part import QueuePart
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.port.flows import Graphs
from oxcart.broker.port.results import AddedNode
from oxcart.broker.replies import text
from oxcart.model.errors import CrossSlotError, ReplyCode, ValidationError, error_for_code
from oxcart.model.graph import Existing, Kind, Node, arrange
from oxcart.model.names import HIDDEN
from oxcart.model.target import split_lane

if TYPE_CHECKING:
    from oxcart.broker.bullmq.broker import BullMQBroker

_KINDS = {Kind.AFTER: "a", Kind.AFTER_ANY: "y"}


class QueueGraphs(QueuePart, Graphs):
    """The graphs that begin in one queue."""

    async def add(
        self, nodes: Sequence[Node], *, timeout: float | None = None, replicated: bool = False
    ) -> list[AddedNode]:
        broker, order = self._broker, arrange(nodes)
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
                node.name,
                node.data,
                node.options,
                now,
                waits=True,
                keyed=True,
                sealer=node.sealer,
                make_id=broker.make_id,
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
            raise error_for_code(status, text(detail), "add")
        return [_added(ids[number], detail[turn[number] - 1]) for number in range(len(nodes))]

    async def dependents(self, job_id: str) -> dict[str, Kind]:
        broker = self._broker
        name = job_id.replace("%", "%25").replace(":", "%3A")
        gate = f"{broker.keys.base}{HIDDEN}:{name}"
        kinds = {value.encode(): kind for kind, value in _KINDS.items()}
        found: dict[str, Kind] = {}
        cursor = b"0"
        while True:
            cursor, flat = await broker.caller.command("HSCAN", gate, cursor, "MATCH", "d:*", "COUNT", 500)
            pairs = zip(flat[::2], flat[1::2], strict=True)
            found |= {text(key[2:]): kinds[kind] for key, kind in pairs}
            if cursor == b"0":
                return dict(sorted(found.items()))

    async def released(self, job_id: str) -> list[str]:
        broker = self._broker
        raw = await broker.caller.command("HGET", broker.keys.job(job_id), "ox:released")
        return [] if raw is None else msgspec.json.decode(raw, type=list[str])


def _added(job_id: str, code: Any) -> AddedNode:
    if isinstance(code, list):  # the job that owns its idempotency key
        return AddedNode(text(code[0]), created=False, duplicate=True)
    return AddedNode(job_id, created=code == ReplyCode.DONE)


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
            base, lane = split_lane(queue)
            self.prefixes.append(
                keys.key("") if lane is None else f"{Keys(base, prefix, broker.keys.tagged).key('')}\n{lane}"
            )
            self._numbers[named] = len(self.prefixes)
        return self._numbers[named]
