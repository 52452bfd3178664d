"""The position of a reader in a stream, in every case of trimming and recreation."""

from __future__ import annotations

import pytest

from oxcart.broker.export import StreamFacts
from oxcart.spark.read.position import (
    Position,
    before_next,
    is_recreated,
    order,
    read_position,
    settle,
)

AT = Position("100-0", 50, 1, "m1")


def facts(added: int, kept: int, first: str, last: str = "200-0", mark: str = "m1") -> StreamFacts:
    return StreamFacts(added, kept, first, last, "0-0", mark)


def test_ids_are_ordered_by_number_not_by_text() -> None:
    assert order("9-10") > order("9-9")
    assert order("10-0") > order("9-5")
    assert order("7") == (7, 0)


@pytest.mark.parametrize(
    ("seen", "recreated", "missed"),
    [
        pytest.param(facts(80, 60, "70-0"), False, 0, id="our last entry is still there"),
        pytest.param(facts(80, 30, "101-0"), False, 0, id="trimmed up to our last entry and no further"),
        pytest.param(facts(80, 10, "150-0"), False, 20, id="trimmed past it"),
        pytest.param(facts(80, 0, ""), False, 30, id="all trimmed away"),
        pytest.param(facts(10, 10, "150-0", mark=""), True, 0, id="made anew, known by its count"),
        pytest.param(facts(90, 30, "150-0", mark="m2"), True, 60, id="made anew, known by its mark"),
        pytest.param(facts(90, 30, "150-0", mark=""), True, 60, id="the mark is gone: perhaps made anew"),
        pytest.param(facts(90, 60, "20-0", "90-0"), False, 0, id="an older life whose ids we are ahead of"),
        pytest.param(facts(0, 0, "", "0-0", ""), False, 0, id="no stream at all"),
    ],
)
def test_missed_entries_are_counted(seen: StreamFacts, recreated: bool, missed: int) -> None:
    assert is_recreated(AT, seen) is recreated
    at = settle(AT, seen)
    assert at.life == (2 if recreated else 1)
    assert before_next(at, seen) - at.n == missed


def test_the_first_read_counts_what_is_gone_before_it() -> None:
    seen = facts(80, 10, "150-0")
    at = settle(Position(), seen)
    assert (at.life, at.mark, before_next(at, seen)) == (1, "m1", 70)


def test_a_mark_that_appears_later_is_taken_on() -> None:
    assert settle(Position("100-0", 50, 1), facts(80, 60, "70-0")).mark == "m1"


def test_positions_survive_an_offset() -> None:
    assert read_position(AT.to_json()) == AT
    assert Position().to_json() == {"id": "0-0", "n": 0}
