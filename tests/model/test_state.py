from typing import Any

import pytest

from oxcart.model.errors import ValidationError, WrongState
from oxcart.model.state import (
    INITIAL,
    TERMINAL,
    TRANSITIONS,
    State,
    WireState,
    can_move,
    check_move,
    formal_state,
)

S = State

#: The formal model's own table, written down a second time.
FORMAL = [
    (S.PENDING, S.SCHEDULED),
    (S.PENDING, S.DELAYED),
    (S.DELAYED, S.SCHEDULED),
    (S.SCHEDULED, S.RUNNING),
    (S.RUNNING, S.COMPLETED),
    (S.RUNNING, S.FAILED),
    (S.RUNNING, S.RETRYING),
    (S.RUNNING, S.DEAD_LETTER),
    (S.RETRYING, S.SCHEDULED),
    (S.RETRYING, S.DEAD_LETTER),
]

#: The transitions that the design adds.
ADDED = [
    (S.RUNNING, S.SCHEDULED),
    (S.RUNNING, S.DELAYED),
    (S.RUNNING, S.PENDING),
    (S.RUNNING, S.CANCELLED),
    (S.PENDING, S.FAILED),
    *((source, S.CANCELLED) for source in (S.PENDING, S.SCHEDULED, S.DELAYED, S.RETRYING)),
    *((source, S.DEAD_LETTER) for source in (S.PENDING, S.SCHEDULED, S.DELAYED)),
]


def test_exactly_the_moves_of_the_design_are_allowed() -> None:
    allowed = {(a, b) for a in State for b in State if can_move(a, b)}
    assert allowed == set(FORMAL) | set(ADDED)


def test_only_a_replay_leaves_a_terminal_state() -> None:
    assert {S.COMPLETED, S.FAILED, S.DEAD_LETTER, S.CANCELLED} == TERMINAL
    for state in TERMINAL:
        assert not any(can_move(state, other) for other in State)
        assert [other for other in State if can_move(state, other, replay=True)] == [S.SCHEDULED]
    assert not can_move(S.RUNNING, S.SCHEDULED, replay=True)


def test_every_state_can_be_reached_and_every_move_has_a_reason() -> None:
    assert {move.target for move in TRANSITIONS} | INITIAL == set(State)
    assert all(move.reason for move in TRANSITIONS)
    assert len(set(TRANSITIONS)) == len(TRANSITIONS)


def test_check_move() -> None:
    check_move(S.SCHEDULED, S.RUNNING)
    check_move(S.FAILED, S.SCHEDULED, replay=True)
    with pytest.raises(WrongState) as caught:
        check_move(S.DELAYED, S.RUNNING, job_id="j1")
    assert caught.value.job_id == "j1"
    assert str(caught.value) == (
        "job j1 cannot go from delayed to running; from there it may go cancelled, dead_letter, scheduled"
    )
    with pytest.raises(WrongState, match="it may go nowhere"):
        check_move(S.COMPLETED, S.RUNNING)


@pytest.mark.parametrize(
    ("wire", "facts", "formal"),
    [
        ("waiting", {}, S.SCHEDULED),
        ("delayed", {"delay": 0}, S.SCHEDULED),
        ("delayed", {"delay": 5}, S.DELAYED),
        ("waiting", {"attempts_made": 1}, S.SCHEDULED),
        ("prioritized", {}, S.SCHEDULED),
        ("paused", {}, S.SCHEDULED),
        ("waiting", {"held": True}, S.PENDING),
        ("delayed", {"held": True}, S.PENDING),
        ("active", {"held": True}, S.RUNNING),
        ("waiting-children", {}, S.PENDING),
        ("active", {}, S.RUNNING),
        ("completed", {}, S.COMPLETED),
        ("delayed", {}, S.DELAYED),
        ("delayed", {"stalled": 1}, S.DELAYED),
        ("delayed", {"attempts_made": 1, "attempts": 3}, S.RETRYING),
        ("failed", {"attempts_made": 1, "attempts": 3}, S.FAILED),
        ("failed", {"attempts_made": 3, "attempts": 3}, S.DEAD_LETTER),
        ("failed", {"attempts_made": 2, "attempts": 3, "stalled": 1}, S.DEAD_LETTER),
        ("failed", {"attempts_made": 3, "attempts": 3, "category": "temporary"}, S.DEAD_LETTER),
        ("failed", {"attempts_made": 3, "attempts": 3, "category": "permanent"}, S.FAILED),
        ("failed", {"attempts_made": 3, "attempts": 3, "category": "cancelled"}, S.CANCELLED),
        ("failed", {"attempts_made": 1, "attempts": 3, "lifetime_over": True}, S.DEAD_LETTER),
        ("failed", {"attempts_made": 1, "attempts": 0}, S.DEAD_LETTER),
        (WireState.ACTIVE, {}, S.RUNNING),
    ],
)
def test_formal_state(wire: str, facts: dict[str, Any], formal: State) -> None:
    assert formal_state(wire, **facts) is formal


@pytest.mark.parametrize("wire", ["unknown", "nonsense", ""])
def test_a_job_in_no_list_has_no_state(wire: str) -> None:
    with pytest.raises(ValidationError, match="wire_state must be a known state of the wire, got"):
        formal_state(wire)
