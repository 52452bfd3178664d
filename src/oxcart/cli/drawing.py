"""Draws a graph of jobs as one self-contained SVG: each job once, to the right of its dependencies."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from oxcart.drawing.labels import fitted, width_of
from oxcart.observe.terminal import clean

if TYPE_CHECKING:
    from oxcart.model.flow import FlowView

_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1a1c20; } .small { font-size: 10px; fill: #667; }
rect { fill: #f4f5f7; stroke: #99a; } path { fill: none; stroke: #99a; }
.completed { stroke: #1f9d63; } .failed, .dead_letter { stroke: #d2483f; }
.running { stroke: #2a78d6; }
"""
#: The size of a box, the gaps between columns and rows, and the margin.
_WIDE, _HIGH, _APART, _ROW, _EDGE = 190, 40, 60, 54, 16
#: The room of a line in its box, and the sizes of both lines.
_ROOM, _NAME, _SMALL = _WIDE - 16, 12, 10

_Key = tuple[str, str]


def state_of(view: FlowView, *, wire: bool = False) -> str:
    """Returns the formal state of a job of a view; its state on the wire if it has no formal one."""
    return view.state if wire or view.job.state is None else view.job.state.value


def drawing(top: FlowView, behind: Iterable[str] = (), *, wire: bool = False) -> str:
    """Returns the jobs of a view as SVG, with the keys of its dependents to the right of the top job.

    Args:
        top: The job with those below it.
        behind: The keys of jobs that wait for it.
        wire: Whether to name the states of the wire.
    """
    jobs: dict[_Key, FlowView] = {}
    edges: dict[tuple[_Key, _Key], None] = {}
    depth: dict[_Key, int] = {}

    def visit(view: FlowView, level: int) -> _Key:
        key = (view.job.queue, view.job.id)
        jobs.setdefault(key, view)
        depth[key] = max(depth.get(key, 0), level)
        for child in view.children:
            edges[visit(child, level + 1), key] = None
        return key

    visit(top, 0)
    deepest = max(depth.values())
    rows: dict[int, int] = {}
    places: dict[_Key, tuple[int, int]] = {}
    for key in jobs:
        column = deepest - depth[key]
        row = rows.get(column, 0)
        rows[column] = row + 1
        places[key] = (_EDGE + column * (_WIDE + _APART), _EDGE + row * _ROW)
    parts = [_edge(places[source], places[target]) for source, target in edges]
    parts += [_box(view, *places[key], wire) for key, view in jobs.items()]
    columns = deepest + 1
    for waiting in behind:
        row = rows.get(columns, 0)
        rows[columns] = row + 1
        place = (_EDGE + columns * (_WIDE + _APART), _EDGE + row * _ROW)
        parts += [_edge(places[top.job.queue, top.job.id], place), _named(waiting, *place)]
    wide = 2 * _EDGE + (columns + (columns in rows)) * (_WIDE + _APART) - _APART
    high = 2 * _EDGE + max(rows.values()) * _ROW - (_ROW - _HIGH)
    size = f"width='{wide}' height='{high}' viewBox='0 0 {wide} {high}'"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' {size}>"
    return "\n".join([head, f"<style>{_STYLE}</style>", *parts, "</svg>"])


def _edge(source: tuple[int, int], target: tuple[int, int]) -> str:
    left, top = source[0] + _WIDE, source[1] + _HIGH // 2
    right, bottom = target[0], target[1] + _HIGH // 2
    middle = (left + right) // 2
    return f"<path d='M{left} {top} C{middle} {top} {middle} {bottom} {right} {bottom}'/>"


def _box(view: FlowView, left: int, top: int, wire: bool) -> str:
    job = view.job
    more = f", {view.more:,} more before it" if view.more else ""
    title = _label(f"{job.name} {job.queue}/{job.id} {state_of(view, wire=wire)}{more}")
    name, place = _label(fitted(clean(job.name), _ROOM, _NAME)), _label(_place(view, wire))
    return (
        f"<g><title>{title}</title>"
        f"<rect class='{escape(state_of(view), quote=True)}' x='{left}' y='{top}' width='{_WIDE}' "
        f"height='{_HIGH}' rx='4'/>"
        f"<text x='{left + 8}' y='{top + 16}'>{name}</text>"
        f"<text class='small' x='{left + 8}' y='{top + 32}'>{place}</text></g>"
    )


def _named(key: str, left: int, top: int) -> str:
    name = _label(fitted(clean(key), _ROOM, _SMALL))
    return (
        f"<g><title>{_label(key)} waits</title>"
        f"<rect class='pending' x='{left}' y='{top}' width='{_WIDE}' height='{_HIGH}' rx='4'/>"
        f"<text class='small' x='{left + 8}' y='{top + 24}'>{name}</text></g>"
    )


def _label(text: str) -> str:
    return escape(clean(text), quote=True)


def _place(view: FlowView, wire: bool) -> str:
    """Returns a job's queue, id and state: the id is cut first, because its beginning finds the job."""
    state = f" · {state_of(view, wire=wire)}"
    room = _ROOM - width_of(state, _SMALL)
    queue = fitted(clean(view.job.queue), room / 2, _SMALL)
    return fitted(f"{queue}/{clean(view.job.id)}", room, _SMALL) + state
