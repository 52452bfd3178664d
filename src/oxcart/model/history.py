"""A job's history: its transitions and its attempts.

A job with the option ``history`` stores them in two fields of its hash, which the scripts that move it write.
Readers infer the rest from the other fields and mark it: all of a job without a history, and what a peer's
worker did.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from oxcart.model.state import INITIAL, REPLAY, TERMINAL, TRANSITIONS, State

#: The most attempts of a history, newest last.
MOST_ATTEMPTS = 20


class Change(msgspec.Struct, frozen=True):
    """One transition of a job.

    Attributes:
        source: The state it left.
        target: The state it entered.
        at: When, in milliseconds, or None if unknown.
        why: The reason from the model's table.
        worker: The worker that caused it, if any.
        inferred: Whether the reader inferred it.
    """

    source: State
    target: State
    at: int | None
    why: str
    worker: str | None = None
    inferred: bool = False


class Attempt(msgspec.Struct, frozen=True):
    """One ended attempt of a job.

    Attributes:
        id: The attempt's id, ``<job id>/<number>``.
        number: The number of starts up to this one: the fencing number.
        started: When it began, in milliseconds.
        ended: When it ended, in milliseconds.
        worker: The worker that ran it.
        outcome: ``completed``, ``failed``, ``retried``, ``snoozed``, ``given_back``, ``waits`` (for children)
            or ``stalled`` (its worker was lost); None if a peer ran it and it is unknown.
        category: The category of the failure, if it failed.
        code: The application's code for the failure.
        message: The failure in one line.
        stack: Its stack trace.
        inferred: Whether the reader inferred it.
    """

    id: str
    number: int
    started: int | None = None
    ended: int | None = None
    worker: str | None = None
    outcome: str | None = None
    category: str | None = None
    code: str | None = None
    message: str | None = None
    stack: str | None = None
    inferred: bool = False


class Known(msgspec.Struct, frozen=True):
    """Other facts of a job's hash, from which history is inferred.

    Attributes:
        state: Its formal state, or None if it was not requested.
        created: When it was added.
        delayed: Whether it was added with a delay.
        started: When its last attempt began.
        ended: When it ended.
        worker: The worker that claimed it last.
    """

    state: State | None
    created: int
    delayed: bool
    started: int | None
    ended: int | None
    worker: str | None


def attempt_id(job_id: str, number: int) -> str:
    """Returns the id of the attempt with this number of starts."""
    return f"{job_id}/{number}"


def transitions(text: str, known: Known) -> list[Change]:
    """Returns the transitions of a job, oldest first.

    Args:
        text: Its record, one transition per line.
        known: Other facts of the job.
    """
    cut = text.startswith("+")
    written = [change for line in text.removeprefix("+").splitlines() if (change := _change(line))]
    changes: list[Change] = []
    if not cut:
        first = State.DELAYED if known.delayed else State.SCHEDULED
        if (written[0].source if written else known.state) is not State.PENDING:
            changes += _bridge(State.PENDING, first, known, known.created)
    for change in written:
        if changes and changes[-1].target is not change.source:
            changes += _bridge(changes[-1].target, change.source, known, change.at)
        changes.append(change)
    last = changes[-1].target if changes else State.PENDING
    if known.state is not None and last is not known.state:
        changes += _bridge(last, known.state, known, None)
    return _in_order(changes, known.created)


def _in_order(changes: list[Change], created: int) -> list[Change]:
    """Returns changes whose times never decrease.

    Their writers may have had different clocks: a peer's, or the server's before it was set back. The
    creation is at most the time of the next known change, and every other time at least the one before.
    """
    times = [change.at for change in changes if change.at is not None]
    if times == sorted(times):
        return changes
    first = next((at for at in times if at != created), created)
    last, ordered = 0, []
    for change in changes:
        if change.at is not None:
            at = min(first, change.at) if change.inferred and change.at == created else change.at
            last = max(last, at)
            ordered.append(msgspec.structs.replace(change, at=last))
        else:
            ordered.append(change)
    return ordered


def attempts(text: str, job_id: str, starts: int, known: Known) -> list[Attempt]:
    """Returns the ended attempts of a job, oldest first, at most 20.

    Args:
        text: Their record, one attempt per line.
        job_id: The job.
        starts: Its number of starts.
        known: Other facts of the job.
    """
    written = {one.number: one for line in text.splitlines() if (one := _attempt(job_id, line))}
    running = known.state is State.RUNNING
    ended = range(max(1, starts - MOST_ATTEMPTS + 1), starts + (0 if running else 1))
    found = []
    for number in ended:
        one = written.get(number) or Attempt(attempt_id(job_id, number), number, inferred=True)
        if number == starts and one.inferred:
            one = msgspec.structs.replace(
                one,
                started=known.started,
                ended=known.ended,
                worker=known.worker,
                outcome=_OUTCOMES.get(known.state) if known.state else None,
            )
        found.append(one)
    return found


_OUTCOMES: Mapping[State, str] = {
    State.COMPLETED: "completed",
    State.FAILED: "failed",
    State.DEAD_LETTER: "failed",
    State.CANCELLED: "failed",
    State.RETRYING: "retried",
}


def _change(line: str) -> Change | None:
    parts = line.split("\t")
    try:
        at, source, target, worker, why = parts
        return Change(State(source), State(target), int(at), why, worker or None)
    except ValueError:  # damaged, or not ours: the other lines are still readable
        return None


def _attempt(job_id: str, line: str) -> Attempt | None:
    try:
        parts: list[Any] = msgspec.json.decode(line.encode("utf-8", "replace"))
        number, started, ended, worker, outcome, category, code, message, stack = parts
        return Attempt(
            attempt_id(job_id, int(number)),
            int(number),
            int(started) if started else None,
            max(int(ended), int(started or 0)) if ended else None,
            worker or None,
            outcome,
            category or None,
            code or None,
            message or None,
            stack or None,
        )
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError):
        return None


def _bridge(source: State, target: State, known: Known, at: int | None) -> list[Change]:
    """Returns the likeliest transitions between two states without a recorded path."""
    found = []
    for step in _way(source, target):
        when = at
        if step[1] is State.RUNNING and at is None:
            when = known.started
        elif step[1] in TERMINAL and at is None:
            when = known.ended
        worker = known.worker if at is None and State.RUNNING in step[:2] else None
        found.append(Change(step[0], step[1], when, step[2], worker, True))
    return found


@cache
def _way(source: State, target: State) -> tuple[tuple[State, State, str], ...]:
    """Returns the shortest path, by transitions of workers if they suffice, else by any allowed one."""
    usual = [
        move for move in TRANSITIONS if State.RUNNING in move[:2] or move.source in (*INITIAL, State.RETRYING)
    ]
    usual = [move for move in usual if move.target not in TERMINAL or move.source is State.RUNNING]
    for moves in (usual, [move for move in TRANSITIONS if move.reason != REPLAY], list(TRANSITIONS)):
        ways: deque[tuple[tuple[State, State, str], ...]] = deque([()])
        seen = {source}
        while ways:
            way = ways.popleft()
            here = way[-1][1] if way else source
            if here is target:
                return way
            for move in moves:
                if move.source is here and move.target not in seen:
                    seen.add(move.target)
                    ways.append((*way, (move.source, move.target, move.reason)))
    return ()
