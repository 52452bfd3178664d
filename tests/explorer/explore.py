"""Visits every reachable state of the model, nearest first, and checks each."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tests.explorer.actions import Action, Rules, apply, possible
from tests.explorer.state import State, initial, violations

#: From one of so many states the explorer checks that all jobs end once nothing is broken any more.
SAMPLE = 25


@dataclass(frozen=True)
class Found:
    """What an exploration found.

    Attributes:
        states: How many states it visited.
        steps: How many actions it tried.
        longest: The longest of the shortest ways to a state.
        faults: What is broken in the first bad state; empty if none is.
        way: The shortest way to it.
    """

    states: int
    steps: int
    longest: int
    faults: tuple[str, ...] = ()
    way: tuple[Action, ...] = ()

    def __str__(self) -> str:
        told = f"{self.states} states, {self.steps} actions, at most {self.longest} apart"
        if not self.faults:
            return f"{told}: all hold"
        way = "\n".join(f"  {number}. {action}" for number, action in enumerate(self.way, 1))
        return f"{told}: {'; '.join(self.faults)}, after\n{way}"


def explore(workers: int = 3, starts: int = 2, crashes: int = 1, rules: Rules | None = None) -> Found:
    """Explores.

    Args:
        workers: How many workers there are; they are interchangeable.
        starts: Most starts of each job.
        crashes: Most deaths of workers.
        rules: What the scripts check.
    """
    known_rules = rules or Rules()
    first = initial(workers)
    came: dict[State, tuple[State, Action] | None] = {first: None}
    depth = {first: 0}
    queue = deque([first])
    steps = number = 0
    while queue:
        state = queue.popleft()
        faults = violations(state)
        if not faults and number % SAMPLE == 0:
            faults = _stuck(state, starts, known_rules)
        number += 1
        if faults:
            return Found(len(came), steps, depth[state], tuple(faults), _way(came, state))
        for action in possible(state, starts, crashes):
            steps += 1
            after = apply(state, action, known_rules).canonical()
            if after not in came:
                came[after] = (state, action)
                depth[after] = depth[state] + 1
                queue.append(after)
    return Found(len(came), steps, max(depth.values()))


def _stuck(state: State, starts: int, rules: Rules) -> list[str]:
    """Returns a fault if the jobs do not all end once nothing is broken any more and one worker works."""
    for number in range(len(state.workers)):
        if state.workers[number].lost is not None:
            state = apply(state, Action("repeat", number), rules)
    for _ in range(3 * (starts + 2)):
        if state.is_done:
            return []
        for number, worker in enumerate(state.workers):
            for job, _ in worker.held:
                state = apply(state, Action("finish", number, job), rules)
        state = apply(state, Action("claim", 0), rules)
        for job in sorted(state.active):
            if not any((job, state.locks[job]) in worker.held for worker in state.workers):
                state = apply(state, Action("expire", job=job), rules)
        state = apply(state, Action("recover"), rules)
    return [] if state.is_done else ["acknowledged: jobs never end, though nothing is broken any more"]


def _way(came: dict[State, tuple[State, Action] | None], state: State) -> tuple[Action, ...]:
    way = []
    while (before := came[state]) is not None:
        state, action = before
        way.append(action)
    return tuple(reversed(way))
