"""Which lists of the wire hold the jobs of a state."""

from __future__ import annotations

from typing import Any

import pytest

from oxcart.model.errors import ValidationError
from oxcart.model.job import Job
from oxcart.model.search import IN_LIST, WIRE, JobSearch, changed_ms, choose_lists
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


def job(**facts: Any) -> Job:
    return Job(**{"id": "j", "name": "send", "queue": "mail", "timestamp": 10, **facts})


@pytest.mark.parametrize(
    ("asked", "fits", "others"),
    [
        ({"priority": 0}, {"priority": 0}, {"priority": 1}),
        ({"priority": [1, 2]}, {"priority": 2}, {"priority": 0}),
        ({"worker": "web-*"}, {"worker_id": "web-1"}, {"worker_id": "mail-1"}),
        ({"worker": ["a", "b"]}, {"worker_id": "b"}, {"worker_id": None}),
        ({"name": "send"}, {"name": "send"}, {"name": "draw"}),
        ({"priority": 1, "name": "draw"}, {"priority": 1, "name": "draw"}, {"priority": 1}),
    ],
)
def test_a_job_must_match_all_that_is_set(
    asked: dict[str, Any], fits: dict[str, Any], others: dict[str, Any]
) -> None:
    search = JobSearch.build_search(now_ms=1_000, **asked)
    assert search.fits(job(**fits), 10)
    assert not search.fits(job(**others), 10)
    assert search.by_time_alone is False


def test_an_empty_search_fits_all_and_times_are_no_other_condition() -> None:
    search = JobSearch.build_search(now_ms=1_000)
    assert search.fits(job(worker_id=None, priority=7), 10)
    assert search.by_time_alone is True
    assert search.has_times is False
    for times in ({"since": 5}, {"until": 5}):
        timed = JobSearch.build_search(now_ms=1_000, **times)  # type: ignore[arg-type]
        assert (timed.by_time_alone, timed.has_times) == (True, True)


@pytest.mark.parametrize(
    "asked", [{"category": "temporary"}, {"tags": {"a": "b"}}, {"correlation_id": "x"}, {"reason": "x"}]
)
def test_any_other_condition_is_more_than_times(asked: dict[str, Any]) -> None:
    assert JobSearch.build_search(now_ms=1, **asked).by_time_alone is False


@pytest.mark.parametrize("priority", [-1, True, "1", [1, -1], [1.0]])
def test_a_priority_is_an_integer_of_the_wire(priority: Any) -> None:
    with pytest.raises(ValidationError, match="priority must be an integer, at least 0"):
        JobSearch.build_search(now_ms=1, priority=priority)


def test_conditions_are_named() -> None:
    with pytest.raises(TypeError):
        JobSearch(("send",))  # type: ignore[call-arg]


def test_a_job_changed_last_when_it_ended_or_began_or_was_added() -> None:
    assert changed_ms(job()) == 10
    assert changed_ms(job(processed_on=20)) == 20
    assert changed_ms(job(processed_on=20, finished_on=30)) == 30
