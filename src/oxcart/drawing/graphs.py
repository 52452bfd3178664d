"""Graphs of jobs as SVG: each job to the right of those that it waits for, and the critical path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from oxcart.drawing.labels import fitted

#: The size of a box, the gaps between columns and rows, and the margin.
_WIDE, _HIGH, _APART, _ROW, _EDGE = 190, 56, 52, 72, 8
#: Where a line begins in its box, and its room.
_INDENT = 28
_ROOM = _WIDE - _INDENT - 8
#: The sizes of both lines, as the stylesheet has them.
_TITLE, _NOTE = 13, 11.5


@dataclass(frozen=True)
class Node:
    """A job of a graph.

    Attributes:
        key: Identifies it.
        title: The first line of its box.
        text: The second line.
        kind: The class of its box: its state.
        href: Where its box leads.
        cost: How long it took, in ms.
        is_top: Whether the page is about it.
    """

    key: str
    title: str
    text: str
    kind: str
    href: str
    cost: float = 0.0
    is_top: bool = False


def layers_of(nodes: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Returns the column of each node: one more than the highest of those that it waits for.

    Args:
        nodes: The keys.
        edges: Pairs of a job and one that waits for it. Edges of a cycle are ignored.
    """
    before: dict[str, list[str]] = {key: [] for key in nodes}
    for source, target in edges:
        before[target].append(source)
    columns: dict[str, int] = {}

    def column(key: str, path: frozenset[str]) -> int:
        if key not in columns:
            inner = path | {key}
            columns[key] = max((column(one, inner) + 1 for one in before[key] if one not in inner), default=0)
        return columns[key]

    for key in nodes:
        column(key, frozenset())
    return columns


def critical_path(costs: Mapping[str, float], edges: Sequence[tuple[str, str]]) -> list[str]:
    """Returns the chain of jobs with the greatest sum of costs, first job first.

    Args:
        costs: How long each job took.
        edges: Pairs of a job and one that waits for it.
    """
    if not costs:
        return []
    columns = layers_of(list(costs), edges)
    best: dict[str, tuple[float, str | None]] = {}
    for key in sorted(costs, key=lambda one: columns[one]):
        sources = [source for source, target in edges if target == key and columns[source] < columns[key]]
        longest = max(sources, key=lambda one: best[one][0], default=None)
        best[key] = (costs[key] + (best[longest][0] if longest is not None else 0.0), longest)
    at: str | None = max(best, key=lambda one: (best[one][0], columns[one]))
    path: list[str] = []
    while at is not None:
        path.append(at)
        at = best[at][1]
    return path[::-1]


def graph(
    nodes: Sequence[Node], edges: Sequence[tuple[str, str]], critical: Sequence[str], label: str
) -> str:
    """Draws a graph.

    Args:
        nodes: The jobs.
        edges: Pairs of a job and one that waits for it.
        critical: The keys of the critical path.
        label: What it shows, for people who cannot see it.
    """
    columns = layers_of([node.key for node in nodes], edges)
    places: dict[str, tuple[int, int]] = {}
    rows: dict[int, int] = {}
    tallest = max((list(columns.values()).count(column) for column in columns.values()), default=1)
    sizes = {column: list(columns.values()).count(column) for column in columns.values()}
    for node in nodes:
        column = columns[node.key]
        row = rows.get(column, 0)
        rows[column] = row + 1
        middle = (tallest - sizes[column]) * _ROW // 2
        places[node.key] = (_EDGE + column * (_WIDE + _APART), _EDGE + middle + row * _ROW)
    on_path = set(pairwise(critical))
    drawn = [_edge(places[s], places[t], (s, t) in on_path) for s, t in edges if (s, t) not in on_path]
    drawn += [_edge(places[s], places[t], True) for s, t in edges if (s, t) in on_path]
    drawn += [_box(node, *places[node.key], node.key in critical) for node in nodes]
    wide = 2 * _EDGE + (max(columns.values(), default=0) + 1) * (_WIDE + _APART) - _APART
    high = 2 * _EDGE + tallest * _ROW - (_ROW - _HIGH)
    return (
        f"<svg class='graph' role='group' aria-label='{escape(label, quote=True)}' width='{wide}' "
        f"height='{high}' viewBox='0 0 {wide} {high}'>{''.join(drawn)}</svg>"
    )


def _edge(source: tuple[int, int], target: tuple[int, int], is_critical: bool) -> str:
    left, top = source[0] + _WIDE, source[1] + _HIGH // 2
    right, bottom = target[0], target[1] + _HIGH // 2
    middle = (left + right) // 2
    kind = "edge critical" if is_critical else "edge"
    return f"<path class='{kind}' d='M{left} {top} C{middle} {top} {middle} {bottom} {right} {bottom}'/>"


def _box(node: Node, left: int, top: int, is_critical: bool) -> str:
    title, note = fitted(node.title, _ROOM, _TITLE, bold=True), fitted(node.text, _ROOM, _NOTE)
    kinds = ["box", node.kind, *(["critical"] if is_critical else []), *(["top"] if node.is_top else [])]
    return (
        f"<a href='{escape(node.href, quote=True)}'><g class='{escape(' '.join(kinds), quote=True)}'>"
        f"<title>{escape(node.title)}: {escape(node.text)}</title>"
        f"<rect x='{left}' y='{top}' width='{_WIDE}' height='{_HIGH}' rx='8'/>"
        f"<circle cx='{left + 16}' cy='{top + 20}' r='4.5'/>"
        f"<text class='title' x='{left + _INDENT}' y='{top + 24}'>{escape(title)}</text>"
        f"<text class='note' x='{left + _INDENT}' y='{top + 43}'>{escape(note)}</text>"
        "</g></a>"
    )
