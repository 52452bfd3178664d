"""The states of the model: what is on the server, and what each worker knows."""

from __future__ import annotations

from typing import NamedTuple

#: Jobs 0 and 1 are ready at first; job 2 is a dependent of both.
JOBS = (0, 1, 2)
DEPENDENT = 2


class Lost(NamedTuple):
    """A call that was applied while its reply was lost: the worker repeats it.

    Attributes:
        verb: ``claim`` or ``finish``.
        job: The job; -1 for a claim that found none.
        start: The start that the call claimed or finishes.
        code: The reply of a finish.
        end: ``c`` for a finish that completes, ``r`` for one that retries at once.
        next_job: The job that a finish claimed in the same call; -1 for none.
        next_start: The start of that claim.
    """

    verb: str
    job: int
    start: int
    code: int = 0
    end: str = ""
    next_job: int = -1
    next_start: int = 0


class Worker(NamedTuple):
    """What a worker knows.

    Attributes:
        held: The claims that it runs, as job and start.
        lost: Its call without a reply.
    """

    held: tuple[tuple[int, int], ...] = ()
    lost: Lost | None = None


class State(NamedTuple):
    """Everything.

    Attributes:
        wait: Ready jobs; the last one is claimed next.
        active: Leased jobs.
        pending: What the dependent waits for; None once it is released.
        completed: Completed jobs, with the start whose result was accepted.
        retried: Failed attempts that were retried, as job and start.
        starts: How often each job was started.
        locks: The start whose worker has the lease on each job; 0 for none.
        stalls: How often each job was recovered.
        noted: Jobs that were active at the last stalled check.
        releases: How often the dependent was released.
        workers: What each worker knows.
        crashes: How many workers have died.
        lies: Whether a worker was told something else about its finish than what was applied.
    """

    wait: tuple[int, ...]
    active: frozenset[int]
    pending: frozenset[int] | None
    completed: tuple[tuple[int, int], ...]
    retried: tuple[tuple[int, int], ...]
    starts: tuple[int, ...]
    locks: tuple[int, ...]
    stalls: tuple[int, ...]
    noted: frozenset[int]
    releases: int
    workers: tuple[Worker, ...]
    crashes: int = 0
    lies: bool = False

    def with_worker(self, number: int, worker: Worker) -> State:
        """Returns the state with another knowledge of one worker."""
        workers = (*self.workers[:number], worker, *self.workers[number + 1 :])
        return self._replace(workers=workers)

    def canonical(self) -> State:
        """Returns the same state with its workers in order: they are interchangeable."""
        return self._replace(workers=tuple(sorted(self.workers, key=_order)))

    @property
    def is_done(self) -> bool:
        """Whether all jobs are completed."""
        return len(self.completed) == len(JOBS)


def _order(worker: Worker) -> tuple[tuple[tuple[int, int], ...], tuple[object, ...]]:
    return worker.held, worker.lost or ()


def initial(workers: int) -> State:
    """Returns the state before the first action."""
    none = (0,) * len(JOBS)
    return State(
        wait=(1, 0),
        active=frozenset(),
        pending=frozenset({0, 1}),
        completed=(),
        retried=(),
        starts=none,
        locks=none,
        stalls=none,
        noted=frozenset(),
        releases=0,
        workers=(Worker(),) * workers,
    )


def changed(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    """Returns a tuple with one value replaced."""
    return (*values[:at], value, *values[at + 1 :])


def violations(state: State) -> list[str]:
    """Returns what is broken in a state."""
    found = []
    for job in JOBS:
        places = list(state.wait).count(job) + (job in state.active)
        places += sum(done == job for done, _ in state.completed)
        places += job == DEPENDENT and state.pending is not None
        if places != 1:
            found.append(f"one state: job {job} is in {places} states")
    for job, start in state.completed:
        if start != state.starts[job]:
            found.append(f"lease: job {job} has the result of start {start} of {state.starts[job]}")
        if state.locks[job]:
            found.append(f"one state: job {job} has ended and has a lease")
    running = [claim for worker in state.workers for claim in worker.held]
    if len(set(running)) != len(running):
        found.append("lease: a start runs in two workers")
    for job in JOBS:
        if state.locks[job] and job not in state.active:
            found.append(f"lease: job {job} has a lease and is not active")
        # Each start but the last, or the present one, ended by a stall or a retry.
        ends = state.stalls[job] + sum(one == job for one, _ in state.retried)
        if state.starts[job] > ends + 1:
            found.append(f"attempts: job {job} had {state.starts[job]} starts and {ends} stalls and retries")
    if state.releases > 1:
        found.append(f"released once: the dependent was released {state.releases} times")
    if state.releases and len({job for job, _ in state.completed} - {DEPENDENT}) < DEPENDENT:
        found.append("released once: the dependent was released before all had ended")
    if state.lies:
        found.append("acknowledged: a worker was told something else about its finish than what was applied")
    return found
