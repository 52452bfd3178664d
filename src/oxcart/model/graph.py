"""Graphs of dependent jobs: the checks before an add, and the effect of a dependency's end.

``lua/add_graph.lua`` and ``lua/parts/gates.lua`` apply the same rules to jobs that exist already.
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

#: The most jobs of a chain.
DEEPEST = 100
#: The most dependencies of one job.
BROADEST = 1000
#: The most jobs and dependencies of one graph: one call adds them.
MOST_JOBS = 1000
MOST_EDGES = 20_000


class Kind(enum.StrEnum):
    """The kind of a dependency."""

    #: All of them must complete. A dependency that ends otherwise moves the job into the same state.
    AFTER = "after"
    #: One of them must end, in any state.
    AFTER_ANY = "after_any"


class Existing(msgspec.Struct, frozen=True):
    """A job that exists already: the prefix of its queue's keys, the queue, and its id."""

    prefix: str
    queue: str
    id: str


class Edge(msgspec.Struct, frozen=True):
    """A dependency: the index of a job of the same graph, or an existing job."""

    of: int | Existing
    kind: Kind = Kind.AFTER


class Node(msgspec.Struct, frozen=True):
    """A job of a graph and its dependencies.

    Attributes:
        queue: The name of its queue.
        prefix: The prefix of the queue's keys.
        name: The name of its handler.
        data: Its payload.
        options: Its options.
        edges: Its dependencies.
        sealer: Encrypts its payload, or None if its queue has no keys.
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
    """Returns the indexes of a graph's jobs in an order in which dependencies come first.

    Raises:
        ValidationError: The graph has a cycle, is too deep, too broad or too large, or a job has an id or
            options that dependencies do not allow.
    """
    if len(nodes) > MOST_JOBS:
        raise ValidationError("graph", f"at most {MOST_JOBS} jobs", len(nodes))
    edges = sum(len(node.edges) for node in nodes)
    if edges > MOST_EDGES:
        raise ValidationError("graph", f"at most {MOST_EDGES} dependencies", edges)
    ids: set[tuple[str, str, str]] = set()
    keys: set[tuple[str, str, str, str]] = set()
    for node in nodes:
        _check(node, len(nodes), ids)
        if (key := node.options.idempotency_key) is not None:
            named = (node.prefix, node.queue, node.name, key)
            if named in keys:
                raise ValidationError("idempotency_key", "used once in a graph for a name", key)
            keys.add(named)
    order = _sorted(nodes)
    depths = [1] * len(nodes)
    for number in order:
        of = [depths[edge.of] for edge in nodes[number].edges if isinstance(edge.of, int)]
        # With an existing dependency the chain has at least two jobs; the script knows its length.
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
            raise ValidationError("after", "a job of this graph, or an existing job", edge.of)
        if edge.of in seen:
            raise ValidationError("after", "a job once, either in after or in after_any", edge.of)
        seen.add(edge.of)
    options = node.options
    if options.deduplication is not None:
        raise ValidationError("deduplication", "that of a job without dependencies", node.name)
    check_new_id(options.job_id, (node.prefix, node.queue), "graph", ids)


def _sorted(nodes: Sequence[Node]) -> list[int]:
    waits = [sum(isinstance(edge.of, int) for edge in node.edges) for node in nodes]
    behind: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        for edge in node.edges:
            if isinstance(edge.of, int):
                behind[edge.of].append(number)
    order = [number for number, open_edges in enumerate(waits) if not open_edges]
    for number in order:  # grows during the iteration
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
    """Returns the state of a dependent after a dependency's end, or None if it is released.

    Raises:
        ValidationError: The dependency has not ended.
    """
    if ended not in TERMINAL:
        raise ValidationError("state", "one of " + ", ".join(sorted(TERMINAL)), ended)
    return None if kind is Kind.AFTER_ANY or ended is State.COMPLETED else ended


def inherited(own: int, of: Iterable[int]) -> int:
    """Returns the priority of a dependent: the highest of all, which is the lowest number."""
    return min([own, *of])
