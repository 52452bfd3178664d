"""The states of a job, the transitions between them, and the formal state of a job on the wire."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from oxcart.model.errors import ValidationError, WrongState


class State(StrEnum):
    """The formal state of a job, the same on every protocol."""

    PENDING = "pending"
    SCHEDULED = "scheduled"
    DELAYED = "delayed"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    RETRYING = "retrying"
    DEAD_LETTER = "dead_letter"
    CANCELLED = "cancelled"


class WireState(StrEnum):
    """The state of a job on BullMQ's wire."""

    WAITING = "waiting"
    PRIORITIZED = "prioritized"
    DELAYED = "delayed"
    ACTIVE = "active"
    COMPLETED = "completed"
    FAILED = "failed"
    WAITING_CHILDREN = "waiting-children"
    PAUSED = "paused"
    UNKNOWN = "unknown"


class Transition(NamedTuple):
    """One allowed transition."""

    source: State
    target: State
    reason: str


#: States that a new job may have.
INITIAL = frozenset({State.PENDING, State.SCHEDULED, State.DELAYED})

#: States that a job leaves only by an operator's replay.
TERMINAL = frozenset({State.COMPLETED, State.FAILED, State.DEAD_LETTER, State.CANCELLED})

#: The reason of the only transition out of a terminal state.
REPLAY = "an operator replays the job: a new generation begins"

_S = State

#: Every allowed transition with its reason. Two states may have several reasons.
TRANSITIONS: tuple[Transition, ...] = (
    # the formal model's own table
    Transition(_S.PENDING, _S.SCHEDULED, "immediate execution requested"),
    Transition(_S.PENDING, _S.DELAYED, "a delay was asked for"),
    Transition(_S.DELAYED, _S.SCHEDULED, "the delay has passed"),
    Transition(_S.SCHEDULED, _S.RUNNING, "a worker accepts the job"),
    Transition(_S.RUNNING, _S.COMPLETED, "the handler succeeded"),
    Transition(_S.RUNNING, _S.FAILED, "the handler failed for good"),
    Transition(_S.RUNNING, _S.RETRYING, "the handler failed for now, attempts are left"),
    Transition(_S.RUNNING, _S.DEAD_LETTER, "the handler failed for now, no attempts are left"),
    Transition(_S.RETRYING, _S.SCHEDULED, "the backoff has passed"),
    Transition(_S.RETRYING, _S.DEAD_LETTER, "the attempts are used up"),
    Transition(_S.PENDING, _S.SCHEDULED, "its dependencies have ended"),
    Transition(_S.DELAYED, _S.SCHEDULED, "an operator lets it run now"),
    Transition(_S.RETRYING, _S.SCHEDULED, "an operator lets it run now"),
    # a worker ends an attempt, but not the job
    Transition(_S.RUNNING, _S.SCHEDULED, "the lease was lost"),
    Transition(_S.RUNNING, _S.SCHEDULED, "the worker gave the job back"),
    Transition(_S.RUNNING, _S.SCHEDULED, "an immediate retry"),
    Transition(_S.RUNNING, _S.DELAYED, "the handler snoozed the job"),
    Transition(_S.RUNNING, _S.RETRYING, "the handler snoozed the job"),  # one that had failed before
    Transition(_S.RUNNING, _S.PENDING, "the job waits for its children"),
    Transition(_S.RUNNING, _S.CANCELLED, "the job was cancelled"),
    # the end of a dependency
    Transition(_S.PENDING, _S.FAILED, "a dependency failed"),
    Transition(_S.PENDING, _S.DEAD_LETTER, "a dependency is in the dead letters"),
    Transition(_S.PENDING, _S.CANCELLED, "a dependency was cancelled"),
    # ends of a job that does not run
    Transition(_S.PENDING, _S.CANCELLED, "the job was cancelled"),
    Transition(_S.SCHEDULED, _S.CANCELLED, "the job was cancelled"),
    Transition(_S.DELAYED, _S.CANCELLED, "the job was cancelled"),
    Transition(_S.RETRYING, _S.CANCELLED, "the job was cancelled"),
    Transition(_S.PENDING, _S.DEAD_LETTER, "the lifetime is over"),
    Transition(_S.SCHEDULED, _S.DEAD_LETTER, "the lifetime is over"),
    Transition(_S.DELAYED, _S.DEAD_LETTER, "the lifetime is over"),
    Transition(_S.RETRYING, _S.DEAD_LETTER, "the lifetime is over"),
    Transition(_S.RUNNING, _S.DEAD_LETTER, "the lifetime is over"),
    Transition(_S.RUNNING, _S.DEAD_LETTER, "the job cannot be decoded"),
    # replay
    Transition(_S.COMPLETED, _S.SCHEDULED, REPLAY),
    Transition(_S.FAILED, _S.SCHEDULED, REPLAY),
    Transition(_S.DEAD_LETTER, _S.SCHEDULED, REPLAY),
    Transition(_S.CANCELLED, _S.SCHEDULED, REPLAY),
)

_MOVES = frozenset((move.source, move.target) for move in TRANSITIONS if move.reason != REPLAY)
_REPLAYS = frozenset((move.source, move.target) for move in TRANSITIONS if move.reason == REPLAY)


def can_move(source: State, target: State, *, replay: bool = False) -> bool:
    """Returns whether a transition is allowed.

    Args:
        source: The job's current state.
        target: The next state.
        replay: Whether an operator replays the job, the only way out of a terminal state.
    """
    return (source, target) in (_REPLAYS if replay else _MOVES)


def check_move(source: State, target: State, *, job_id: str = "", replay: bool = False) -> None:
    """Checks a transition by `can_move`.

    Raises:
        WrongState: The transition is not allowed.
    """
    if can_move(source, target, replay=replay):
        return
    allowed = sorted({end for begin, end in (_REPLAYS if replay else _MOVES) if begin == source})
    text = ", ".join(allowed) if allowed else "nowhere"
    raise WrongState(job_id, f"job {job_id} cannot go from {source} to {target}; from there it may go {text}")


_PLAIN = {
    WireState.WAITING: State.SCHEDULED,
    WireState.PRIORITIZED: State.SCHEDULED,
    WireState.PAUSED: State.SCHEDULED,  # ready, only the queue is not
    WireState.ACTIVE: State.RUNNING,
    WireState.COMPLETED: State.COMPLETED,
    WireState.WAITING_CHILDREN: State.PENDING,
}


def formal_state(
    wire_state: WireState | str,
    *,
    attempts_made: int = 0,
    attempts: int = 1,
    stalled: int = 0,
    category: str | None = None,
    held: bool = False,
    lifetime_over: bool = False,
    delay: int | None = None,
) -> State:
    """Returns the formal state of a job on the wire.

    Args:
        wire_state: The job's state on the wire.
        attempts_made: Attempts that have ended.
        attempts: The job's maximum of attempts; a peer's 0 means 1.
        stalled: The number of stalls; each counts as an attempt.
        category: The category of the failure, if an Oxcart worker stored one.
        held: Whether a gate (a dependency) blocks the job.
        lifetime_over: Whether the job failed because its lifetime was over.
        delay: The job's current delay in ms, if known: a delayed job without one is ready, but parked by a
            limit.

    Raises:
        ValidationError: The wire's state is unknown: the job is in no list.
    """
    where = WireState(wire_state) if wire_state in _WIRE_NAMES else WireState.UNKNOWN
    if where is WireState.UNKNOWN:
        raise ValidationError("wire_state", "a known state of the wire", wire_state)
    if where is WireState.FAILED:
        if category == "cancelled":
            return State.CANCELLED
        exhausted = attempts_made + stalled >= max(attempts, 1)
        if lifetime_over or (exhausted and category != "permanent"):
            return State.DEAD_LETTER
        return State.FAILED
    if held and where not in (WireState.ACTIVE, WireState.COMPLETED):
        return State.PENDING
    if where is WireState.DELAYED and delay == 0:
        return State.SCHEDULED
    if where is WireState.DELAYED:
        return State.RETRYING if attempts_made > 0 else State.DELAYED
    return _PLAIN[where]


_WIRE_NAMES = frozenset(WireState)
