"""A model of resizes: two partitions, a producer that reads the layout, and one whose copy may be old.

The layouts are the values of `oxcart.model.partitions`. Every order of adds, resizes, looks of a worker,
retirements and reclaims is visited. A job is stuck if no worker ever consumes its partition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from oxcart.model.partitions import Layout

PARTITIONS = 2


@dataclass(frozen=True)
class LayoutRules:
    """Parts of the rules that can be left out, to see that the exploration notices.

    Attributes:
        serves_both: A resize to fewer partitions leaves all of them served.
        looks_first: Partitions are given up only when they are empty.
        reclaims: Partitions that were given up are looked at, and served again if they have jobs.
        adds_below_size: A producer with the newest layout adds below its size.
        takes_in: A worker takes partitions of a newer layout in.
    """

    serves_both: bool = True
    looks_first: bool = True
    reclaims: bool = True
    adds_below_size: bool = True
    takes_in: bool = True


class Spread(NamedTuple):
    """A state.

    Attributes:
        layout: The newest version.
        copy: The version that the stale producer knows.
        taken: The worker consumes the partitions below it.
        jobs: How many jobs each partition has.
        known: How many of them were added by the producer that reads the layout.
        adds: How many adds are left.
        changes: How many resizes are left.
    """

    layout: Layout
    copy: Layout
    taken: int
    jobs: tuple[int, ...] = (0,) * PARTITIONS
    known: tuple[int, ...] = (0,) * PARTITIONS
    adds: int = 3
    changes: int = 3


@dataclass(frozen=True)
class Visited:
    """What an exploration found: how many states, and the shortest way to a bad one."""

    states: int
    fault: str = ""
    way: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.fault:
            return f"{self.states} states of resizes: all hold"
        return f"{self.fault}, after {', '.join(self.way)}"


def explore_layouts(rules: LayoutRules | None = None) -> Visited:
    """Visits every state, nearest first."""
    rules = rules or LayoutRules()
    first = Spread(Layout(1, PARTITIONS, PARTITIONS), Layout(1, PARTITIONS, PARTITIONS), PARTITIONS)
    came: dict[Spread, tuple[str, ...]] = {first: ()}
    queue = deque([first])
    while queue:
        state = queue.popleft()
        if fault := _fault(state, rules):
            return Visited(len(came), fault, came[state])
        for name, after in _steps(state, rules):
            if after not in came:
                came[after] = (*came[state], name)
                queue.append(after)
    return Visited(len(came))


def _steps(state: Spread, rules: LayoutRules) -> Iterator[tuple[str, Spread]]:
    layout = state.layout
    if state.adds:
        below = layout.size if rules.adds_below_size else PARTITIONS
        for at in range(below):
            yield f"add to {at}", _added(state, at, known=True)
        for at in range(state.copy.size):
            yield f"stale add to {at}", _added(state, at, known=False)
    yield "the stale producer reads", state._replace(copy=layout)
    if state.changes:
        for size in range(1, PARTITIONS + 1):
            if size != layout.size:
                made = layout.resized(size, 0)
                if not rules.serves_both:
                    made = Layout(made.version, size, size)
                yield f"resize to {size}", state._replace(layout=made, changes=state.changes - 1)
    is_empty = not any(state.jobs[layout.size : layout.served])
    if layout.served > layout.size and (is_empty or not rules.looks_first):
        yield "retire", state._replace(layout=layout.retired(0))
    yield "reclaim", _reclaimed(state, rules)
    yield "the worker looks", _looked(state, rules)
    yield "the worker starts again", state._replace(taken=layout.served)
    for at in range(state.taken):
        if state.jobs[at]:
            yield f"work in {at}", _worked(state, at)


def _added(state: Spread, at: int, *, known: bool) -> Spread:
    state = state._replace(jobs=_more(state.jobs, at, 1), adds=state.adds - 1)
    return state._replace(known=_more(state.known, at, 1)) if known else state


def _worked(state: Spread, at: int) -> Spread:
    known = min(state.known[at], state.jobs[at] - 1)
    return state._replace(
        jobs=_more(state.jobs, at, -1), known=_more(state.known, at, known - state.known[at])
    )


def _looked(state: Spread, rules: LayoutRules) -> Spread:
    return state._replace(taken=max(state.taken, state.layout.served)) if rules.takes_in else state


def _reclaimed(state: Spread, rules: LayoutRules) -> Spread:
    late = [at for at in range(state.layout.served, PARTITIONS) if state.jobs[at]]
    if not late or not rules.reclaims:
        return state
    return state._replace(layout=state.layout.reclaimed(max(late) + 1, 0))


def _fault(state: Spread, rules: LayoutRules) -> str:
    """Returns what is broken: now, or once nothing changes any more and the worker goes on."""
    for at in range(state.layout.served, PARTITIONS):
        if state.known[at]:
            return f"partition {at} is not served, though a job was added to it by the newest layout"
    calm = _looked(_reclaimed(state, rules), rules)
    for at in range(calm.taken, PARTITIONS):
        if calm.jobs[at]:
            return f"a job in partition {at} is stuck"
    return ""


def _more(counts: tuple[int, ...], at: int, many: int) -> tuple[int, ...]:
    return (*counts[:at], counts[at] + many, *counts[at + 1 :])
