"""The transitions of the model, named as the scripts are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.explorer.state import DEPENDENT, JOBS, Lost, State, Worker, changed

#: Codes of a finish: done, no lease, lease of another worker.
DONE, NO_LEASE, OF_ANOTHER = 1, -2, -6


@dataclass(frozen=True)
class Rules:
    """Parts of the scripts that can be left out, to see that the explorer notices.

    Attributes:
        checks_lease: A finish is refused without its lease.
        remembers: A repeated call returns the remembered reply.
        waits_for_all: A dependent waits for all jobs.
        checks_lock: The stalled check recovers only jobs without a lease.
        fences: A lease is revived only for the last start.
    """

    checks_lease: bool = True
    remembers: bool = True
    waits_for_all: bool = True
    checks_lock: bool = True
    fences: bool = True


class Action(NamedTuple):
    """An action.

    Attributes:
        name: The script, or what else happens.
        worker: Who calls it.
        job: On which job.
        lost: Whether its reply gets lost.
        end: How a finish ends: ``c`` completes, ``r`` retries at once.
        claims: Whether a finish claims the next job in the same call.
    """

    name: str
    worker: int = -1
    job: int = -1
    lost: bool = False
    end: str = "c"
    claims: bool = False

    def __str__(self) -> str:
        who = f" by worker {self.worker}" if self.worker >= 0 else ""
        what = f" of job {self.job}" if self.job >= 0 else ""
        how = " (retried)" if self.end == "r" else ""
        how += " and claim" if self.claims else ""
        return f"{self.name}{what}{how}{who}{', reply lost' if self.lost else ''}"


def possible(state: State, most_starts: int, most_crashes: int) -> Iterator[Action]:
    """Yields the actions that may come next."""
    for number, worker in enumerate(state.workers):
        if worker.lost is not None:
            yield Action("repeat", number)
        else:
            if all(state.starts[job] < most_starts for job in state.wait[-1:]):
                yield Action("claim", number)
                if state.wait:
                    yield Action("claim", number, lost=True)
            for job, start in worker.held:
                for end in ("c", "r") if start < most_starts else ("c",):
                    for claims in (False, True) if most_starts > max(state.starts) else (False,):
                        yield Action("finish", number, job, end=end, claims=claims)
                        yield Action("finish", number, job, lost=True, end=end, claims=claims)
            if worker.held:
                yield Action("renew", number)
        if state.crashes < most_crashes and (worker.held or worker.lost):
            yield Action("crash", number)
    for job in JOBS:
        if state.locks[job]:
            yield Action("expire", job=job)
    if state.active or state.noted:
        yield Action("recover")
    yield Action("settle")


def apply(state: State, action: Action, rules: Rules) -> State:
    """Returns the state after an action."""
    match action.name:
        case "claim":
            return _claim(state, action)
        case "finish":
            return _finish(state, action, rules)
        case "repeat":
            return _repeat(state, action, rules)
        case "renew":
            return _renew(state, action, rules)
        case "recover":
            return _recover(state, rules)
        case "expire":
            return state._replace(locks=changed(state.locks, action.job, 0))
        case "crash":
            return state.with_worker(action.worker, Worker())._replace(crashes=state.crashes + 1)
    return state  # settle: the finish has released all


def _claim(state: State, action: Action) -> State:
    state, job, start = _claim_on_server(state)
    worker = state.workers[action.worker]
    if action.lost:
        return state.with_worker(action.worker, worker._replace(lost=Lost("claim", job, start)))
    return state.with_worker(action.worker, _with_claim(worker, job, start))


def _claim_on_server(state: State) -> tuple[State, int, int]:
    """Applies a claim; returns the state, and job and start, -1 for no job."""
    if not state.wait:
        return state, -1, 0
    job = state.wait[-1]
    start = state.starts[job] + 1
    state = state._replace(
        wait=state.wait[:-1],
        active=state.active | {job},
        starts=changed(state.starts, job, start),
        locks=changed(state.locks, job, start),
    )
    return state, job, start


def _with_claim(worker: Worker, job: int, start: int) -> Worker:
    held = worker.held if job < 0 else tuple(sorted({*worker.held, (job, start)}))
    return worker._replace(held=held, lost=None)


def _finish(state: State, action: Action, rules: Rules) -> State:
    worker = state.workers[action.worker]
    start = next(start for job, start in worker.held if job == action.job)
    state, code = finish_on_server(state, action.job, start, rules, action.end)
    job, its = -1, 0
    if action.claims:
        state, job, its = _claim_on_server(state)
    lost = Lost("finish", action.job, start, code, action.end, job, its)
    if action.lost:
        return state.with_worker(action.worker, worker._replace(lost=lost))
    state = _with_code(state, action.worker, lost, code)
    return state.with_worker(action.worker, _with_claim(state.workers[action.worker], job, its))


def _with_code(state: State, number: int, call: Lost, code: int) -> State:
    """The worker receives the code of its finish."""
    attempt = (call.job, call.start)
    held = tuple(one for one in state.workers[number].held if one != attempt)
    if (code == DONE) != (attempt in (state.completed if call.end == "c" else state.retried)):
        state = state._replace(lies=True)
    return state.with_worker(number, Worker(held))


def finish_on_server(state: State, job: int, start: int, rules: Rules, end: str = "c") -> tuple[State, int]:
    """Applies a finish; returns the state and the code."""
    holder = state.locks[job]
    if rules.checks_lease and holder and holder != start:
        return state, OF_ANOTHER
    if (not holder or not rules.checks_lease) and job not in state.active:
        return state, NO_LEASE
    if rules.checks_lease and not holder and state.starts[job] != start:
        return state, NO_LEASE
    state = state._replace(
        locks=changed(state.locks, job, 0),
        active=state.active - {job},
        noted=state.noted - {job},
    )
    if end == "r":
        retried = tuple(sorted({*state.retried, (job, start)}))
        return state._replace(retried=retried, wait=(job, *state.wait)), DONE
    state = state._replace(completed=tuple(sorted({*state.completed, (job, start)})))
    if state.pending is not None and job in state.pending:
        left = state.pending - {job}
        state = state._replace(pending=left)
        if not left or not rules.waits_for_all:
            state = state._replace(pending=None, releases=state.releases + 1, wait=(*state.wait, DEPENDENT))
    return state, DONE


def _repeat(state: State, action: Action, rules: Rules) -> State:
    lost = state.workers[action.worker].lost
    assert lost is not None
    if lost.verb == "claim":
        return _repeat_claim(state, action, rules, lost.job, lost.start)
    code = lost.code
    if not rules.remembers:
        state, code = finish_on_server(state, lost.job, lost.start, rules, lost.end)
    state = _with_code(state, action.worker, lost, code)
    if lost.next_job < 0:
        return state
    return _repeat_claim(state, action, rules, lost.next_job, lost.next_start)


def _repeat_claim(state: State, action: Action, rules: Rules, job: int, start: int) -> State:
    worker = state.workers[action.worker]
    if not rules.remembers:
        forgotten = state.with_worker(action.worker, worker._replace(lost=None))
        return _claim(forgotten, Action("claim", action.worker))
    if job >= 0 and (state.starts[job] == start or not rules.fences):
        if not state.locks[job] and job in state.active:
            state = state._replace(locks=changed(state.locks, job, start))
        if state.locks[job] == start:
            return state.with_worker(action.worker, _with_claim(worker, job, start))
    return state.with_worker(action.worker, worker._replace(lost=None))


def _renew(state: State, action: Action, rules: Rules) -> State:
    worker = state.workers[action.worker]
    kept = []
    for job, start in worker.held:
        holder = state.locks[job]
        is_last = state.starts[job] == start or not rules.fences
        if holder == start or (not holder and is_last and job in state.active):
            kept.append((job, start))
            state = state._replace(locks=changed(state.locks, job, start), noted=state.noted - {job})
    return state.with_worker(action.worker, worker._replace(held=tuple(kept)))


def _recover(state: State, rules: Rules) -> State:
    for job in sorted(state.noted):
        if job in state.active and (not state.locks[job] or not rules.checks_lock):
            state = state._replace(
                active=state.active - {job},
                wait=(*state.wait, job),
                stalls=changed(state.stalls, job, state.stalls[job] + 1),
            )
    return state._replace(noted=state.active)
