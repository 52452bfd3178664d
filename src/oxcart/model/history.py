"""What became of a job: its transitions and its attempts, as far as they were written down.

A job that keeps a history (option ``history``) has them in two fields of its own hash, written by the same
scripts that move it. What nobody wrote down is filled in from the rest of the hash and marked as inferred:
the whole of a job without a history, and what a peer's worker did, which knows nothing of these fields.

May touch: nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from oxcart.model.state import INITIAL, REPLAY, TERMINAL, TRANSITIONS, State

#: How many attempts are told of at most, newest last.
MOST_ATTEMPTS = 20


class Change(msgspec.Struct, frozen=True):
    """One transition of a job.

    Attributes:
        source: The state it left.
        target: The state it entered.
        at: When, in milliseconds; None where nobody can tell.
        why: The reason, in the words of the model.
        worker: The worker that had a part in it, if any.
        inferred: Whether it was not written down but follows from the rest.
    """

    source: State
    target: State
    at: int | None
    why: str
    worker: str | None = None
    inferred: bool = False


class Attempt(msgspec.Struct, frozen=True):
    """One attempt of a job that has ended.

    Attributes:
        id: The attempt's id, ``<job id>/<number>``.
        number: How often the job had been started by then, this time included: the fencing number.
        started: When it began, in milliseconds.
        ended: When it ended, in milliseconds.
        worker: Who ran it.
        outcome: ``completed``, ``failed``, ``retried``, ``snoozed``, ``given_back``, ``waits`` (for children)
            or ``stalled`` (its worker was lost); None where a peer ran it and nothing tells.
        category: The category of the failure, where it was one.
        code: The application's own word for the failure.
        message: The failure in one line.
        stack: Its stack trace.
        inferred: Whether it was not written down but follows from the rest.
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
    """What the rest of a job's hash tells: who took it last, and how it ended.

    Attributes:
        state: Its formal state, or None where it was not asked for.
        created: When it was added.
        delayed: Whether it was added with a delay.
        started: When its last attempt began.
        ended: When it ended.
        worker: Who took it last.
    """

    state: State | None
    created: int
    delayed: bool
    started: int | None
    ended: int | None
    worker: str | None


def attempt_id(job_id: str, number: int) -> str:
    """The id of the attempt that is a job's start of this number."""
    return f"{job_id}/{number}"


def transitions(text: str, known: Known) -> list[Change]:
    """The transitions of a job, oldest first.

    Args:
        text: The field ``ox:history``.
        known: What else is known of the job.
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
    """Changes whose times never decrease.

    Who wrote them may have had different clocks: a peer's, or the server's before it was set back. Then the
    creation is not later than the first change that is known, and no other earlier than the one before it.
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
    """The ended attempts of a job, oldest first, at most 20.

    Args:
        text: The field ``ox:attempts``.
        job_id: The job.
        starts: How often it was started.
        known: What else is known of the job.
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
    except ValueError:  # not ours, or damaged: what stands around it is still worth reading
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
    """The likeliest way between two states of which nobody wrote how the job went it."""
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
    """The shortest way; by what workers do, where that leads there, else by whatever is allowed."""
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
