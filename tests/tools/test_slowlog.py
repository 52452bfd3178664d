"""What `make bench-bounds` and `make bench-limits` judge: calls that repeat, and no single longest one."""

from __future__ import annotations

from benchmarks.bounds import HELD, Row, _needs
from benchmarks.slowlog import Call, needed


def calls(name: str, *spent: float) -> list[Call]:
    return [Call(ms, name, True) for ms in spent]


def need(logged: list[Call], **made: int) -> dict[str, float]:
    return needed(logged, made, 0.25)


def test_a_pause_of_the_machine_is_no_need() -> None:
    assert need(calls("sweep", *[1.0] * 99, 143.0)) == {"sweep": 1.0}


def test_fifty_slow_neighbours_are_a_need() -> None:
    assert need(calls("sweep", *[1.0] * 500, *[12.0] * 50, *[1.0] * 500)) == {"sweep": 12.0}


def test_the_last_calls_are_judged_like_the_first() -> None:
    assert need(calls("clean", *[1.0] * 50, *[40.0] * 49)) == {"clean": 40.0}


def test_few_calls_have_one_median_and_one_call_counts_as_it_is() -> None:
    logged = [*calls("page", 1.0, 9.0, 2.0), *calls("twice", 5.0, 80.0), *calls("once", 70.0)]
    assert need(logged) == {"page": 2.0, "twice": 5.0, "once": 70.0}


def test_scripts_that_are_usually_too_short_for_the_log_need_less_than_it_has() -> None:
    assert need(calls("claim", 9.0, 8.0), claim=1000) == {"claim": 0.25}
    assert need(calls("claim", *[9.0] * 60), claim=1000) == {"claim": 9.0}, "so many are no pause"


def row(needs: float) -> Row:
    return Row("clean", 9, 1.0, 1.0, 99.0, needs, "sweep", 1.0, "")


def test_bounds_judge_what_calls_need() -> None:
    assert row(HELD).fine
    assert not row(HELD + 0.1).fine


def test_an_operation_of_one_call_is_fine_unless_the_call_is_long() -> None:
    assert not row(_needs(calls("sweep", 900.0), {"sweep": 1})).fine
    assert row(_needs(calls("sweep", 0.3), {"sweep": 1})).fine


def test_an_operation_is_judged_by_its_slowest_script_however_many_others_are_short() -> None:
    assert _needs(calls("sweep", *[50.0] * 300), {"sweep": 300, "page": 700}) == 50.0
    assert _needs(calls("sweep", *[50.0] * 5), {"sweep": 5, "page": 995}) == 50.0


def test_calls_that_are_mostly_too_short_for_the_log_are_fine() -> None:
    assert row(_needs(calls("sweep", 50.0, 60.0, 70.0), {"sweep": 40})).fine
    assert row(_needs([], {})).fine
