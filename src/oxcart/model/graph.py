"""A graph of jobs that wait for each other: what it is, and what is checked before any of it is written.

Also what the end of a dependency means for those that wait for it. The same rules hold in
``lua/add_graph.lua`` and ``lua/parts/gates.lua``, which know the jobs that exist already.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from oxcart.model.errors import ValidationError
from oxcart.model.masking import masked
from oxcart.model.names import check_new_id
from oxcart.model.options import JobOptions
from oxcart.model.state import TERMINAL, State

#: How many jobs may wait for each other in a row.
DEEPEST = 100
#: How many jobs one may wait for.
BROADEST = 1000
#: How many jobs one graph may have, and how many dependencies: they are added in one call.
MOST_JOBS = 1000
MOST_EDGES = 20_000


class Kind(enum.StrEnum):
    """How a job waits for another."""

    #: Until all of them have completed. One that ends otherwise takes the job with it, into the same state.
    AFTER = "after"
    #: Until one of them has ended, however it did.
    AFTER_ANY = "after_any"


class Existing(msgspec.Struct, frozen=True):
    """A job that is there already: what stands before the queue's name in keys, the queue, and the id."""

    prefix: str
    queue: str
    id: str


class Edge(msgspec.Struct, frozen=True):
    """A dependency: the number of a job of the same graph, or one that exists already."""

    of: int | Existing
    kind: Kind = Kind.AFTER


class Node(msgspec.Struct, frozen=True):
    """A job of a graph, and what it waits for.

    Attributes:
        queue: The name of its queue.
        prefix: What stands before the queue's name in keys.
        name: Which handler runs it.
        data: Its payload.
        options: How it is to be run and kept.
        edges: What it waits for.
        sealer: Seals its payload when it is encoded; None where its queue has no keys.
    """

    queue: str
    prefix: str
    name: str
    data: Any = None
    options: JobOptions = JobOptions()
    edges: tuple[Edge, ...] = ()
    sealer: Any = None

    def __repr__(self) -> str:
        return masked(self, "data")


def arrange(nodes: Sequence[Node]) -> list[int]:
    """The numbers of a graph's jobs in an order in which each comes behind those that it waits for.

    Raises:
        ValidationError: The graph has a cycle, is too deep, too broad or too large, or a job of it has an id
            or options that do not go with dependencies.
    """
    if len(nodes) > MOST_JOBS:
        raise ValidationError("graph", f"at most {MOST_JOBS} jobs", len(nodes))
    edges = sum(len(node.edges) for node in nodes)
    if edges > MOST_EDGES:
        raise ValidationError("graph", f"at most {MOST_EDGES} dependencies", edges)
    ids: set[tuple[str, str, str]] = set()
    for node in nodes:
        _check(node, len(nodes), ids)
    order = _sorted(nodes)
    depths = [1] * len(nodes)
    for number in order:
        of = [depths[edge.of] for edge in nodes[number].edges if isinstance(edge.of, int)]
        # Behind a job that exists the chain is at least two long; the script knows how long it is.
        known = any(isinstance(edge.of, Existing) for edge in nodes[number].edges)
        depths[number] = 1 + max([*of, int(known)], default=0)
        if depths[number] > DEEPEST:
            raise ValidationError("graph", f"at most {DEEPEST} jobs that wait in a row", depths[number])
    return order


def _check(node: Node, count: int, ids: set[tuple[str, str, str]]) -> None:
    if len(node.edges) > BROADEST:
        raise ValidationError("after", f"at most {BROADEST} jobs to wait for", len(node.edges))
    seen: set[int | Existing] = set()
    for edge in node.edges:
        if isinstance(edge.of, int) and not 0 <= edge.of < count:
            raise ValidationError("after", "a job of this graph, or one that exists", edge.of)
        if edge.of in seen:
            raise ValidationError("after", "a job once, either in after or in after_any", edge.of)
        seen.add(edge.of)
    options = node.options
    if options.deduplication is not None:
        raise ValidationError("deduplication", "that of a job without dependencies", node.name)
    if options.idempotency_key is not None:
        raise ValidationError(
            "idempotency_key", "that of a job without dependencies", options.idempotency_key
        )
    check_new_id(options.job_id, (node.prefix, node.queue), "graph", ids)


def _sorted(nodes: Sequence[Node]) -> list[int]:
    waits = [sum(isinstance(edge.of, int) for edge in node.edges) for node in nodes]
    behind: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        for edge in node.edges:
            if isinstance(edge.of, int):
                behind[edge.of].append(number)
    order = [number for number, open_edges in enumerate(waits) if not open_edges]
    for number in order:  # grows while it is gone through
        for other in behind[number]:
            waits[other] -= 1
            if not waits[other]:
                order.append(other)
    if len(order) < len(nodes):
        left = [node.name for node, open_edges in zip(nodes, waits, strict=True) if open_edges]
        raise ValidationError(
            "graph",
            "without a cycle",
            left[:10],
            f"the jobs {', '.join(left[:10])} would wait for each other for ever: a graph must have no cycle",
        )
    return order


def effect(kind: Kind, ended: State) -> State | None:
    """The state that a waiting job moves to when a dependency has ended; None where it may go on.

    Raises:
        ValidationError: The dependency has not ended.
    """
    if ended not in TERMINAL:
        raise ValidationError("state", "one of " + ", ".join(sorted(TERMINAL)), ended)
    return None if kind is Kind.AFTER_ANY or ended is State.COMPLETED else ended


def inherited(own: int, of: Iterable[int]) -> int:
    """The priority of a job that waits for others: the highest of all, which is the lowest number."""
    return min([own, *of])
