"""Which lists of the wire hold the jobs of a state."""

from __future__ import annotations

import pytest

from oxcart.model.errors import ValidationError
from oxcart.model.search import IN_LIST, WIRE, choose_lists
from oxcart.model.state import State


def test_formal_states_win_where_both_vocabularies_have_the_name() -> None:
    assert choose_lists("failed") == {"failed": frozenset({State.FAILED})}
    assert choose_lists("failed", wire=True) == {"failed": None}
    assert choose_lists("delayed") == {"delayed": frozenset({State.DELAYED})}


def test_names_that_only_the_wire_has_are_understood() -> None:
    assert choose_lists("waiting") == {"wait": None, "paused": None}
    assert choose_lists(["active", "waiting-children"]) == {"active": None, "waiting-children": None}


def test_all_states_of_a_list_need_no_filter() -> None:
    assert choose_lists(["failed", "dead_letter", "cancelled"]) == {"failed": None}
    assert choose_lists(["dead_letter", "failed"])["failed"] == frozenset({State.FAILED, State.DEAD_LETTER})
    assert choose_lists(None) == dict.fromkeys(IN_LIST)


def test_a_job_that_a_limit_holds_back_is_scheduled() -> None:
    assert choose_lists("scheduled") == {
        "wait": None,
        "paused": None,
        "prioritized": None,
        "delayed": frozenset({State.SCHEDULED}),
    }


def test_every_formal_state_is_in_some_list() -> None:
    assert frozenset().union(*IN_LIST.values()) == set(State)
    assert {place for places in WIRE.values() for place in places} == set(IN_LIST)


def test_an_unknown_state_names_both_vocabularies() -> None:
    with pytest.raises(
        ValidationError, match=r"state must be one of pending, .*cancelled, waiting, .*'lost'"
    ):
        choose_lists("lost")
