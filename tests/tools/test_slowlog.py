"""What `make bench-bounds` and `make bench-limits` judge: calls that repeat, and no single longest one."""

from __future__ import annotations

from benchmarks.bounds import HELD, Row, _needs
from benchmarks.slowlog import Call, needed


def calls(name: str, *spent: float) -> list[Call]:
    return [Call(ms, name, True) for ms in spent]


def test_a_pause_of_the_machine_is_no_need() -> None:
    assert needed(calls("sweep", *[1.0] * 99, 143.0)) == {"sweep": 1.0}


def test_fifty_slow_neighbours_are_a_need() -> None:
    assert needed(calls("sweep", *[1.0] * 500, *[12.0] * 50, *[1.0] * 500)) == {"sweep": 12.0}


def test_few_calls_have_one_median_and_two_have_none() -> None:
    assert needed([*calls("page", 1.0, 9.0, 2.0), *calls("once", 5.0, 5.0)]) == {"page": 2.0}


def row(needs: float | None) -> Row:
    return Row("clean", 9, 1.0, 1.0, 99.0, needs, "sweep", 1.0, "")


def test_bounds_judge_what_calls_need() -> None:
    assert row(HELD).fine
    assert not row(HELD + 0.1).fine


def test_an_operation_of_one_long_call_is_not_fine() -> None:
    assert not row(_needs(calls("sweep", 900.0), 1)).fine


def test_calls_that_are_mostly_too_short_for_the_log_are_fine() -> None:
    assert row(_needs(calls("sweep", 50.0, 60.0, 70.0), 40)).fine
    assert row(_needs([], 0)).fine
