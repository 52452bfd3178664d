import warnings
from typing import Any

import pytest

from oxcart.model.errors import ValidationError
from oxcart.model.retention import KEEP, REMOVE, Retention, RetentionWarning


@pytest.mark.parametrize(
    ("value", "expected", "wire"),
    [
        (True, REMOVE, True),
        (False, KEEP, False),
        (0, REMOVE, True),
        (1, Retention(count=1), 1),
        (10_000, Retention(count=10_000), 10_000),
        ({"age": 60}, Retention(age=60), {"age": 60}),
        ({"age": "2d", "count": 5}, Retention(age=172_800, count=5), {"age": 172_800, "count": 5}),
        ({"age": "1500ms"}, Retention(age=2), {"age": 2}),
        ({"count": 3}, Retention(count=3), 3),
        ({"age": 5, "limit": 10}, Retention(age=5, limit=10), {"age": 5, "limit": 10}),
        (Retention(count=3), Retention(count=3), 3),
        (KEEP, KEEP, False),
    ],
)
def test_forms(value: Any, expected: Retention, wire: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = Retention.parse(value, "remove_on_fail")
    assert kept == expected
    assert kept.wire() == wire
    assert type(kept.wire()) is type(wire)
    assert Retention.from_wire(kept.wire()) == expected


def test_none_is_unset() -> None:
    assert Retention.parse(None) is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-1, "remove_on_fail must be True, False, an integer of at least 0 or {age, count, limit}, got -1"),
        ("5", "remove_on_fail must be True, False, an integer of at least 0"),
        (1.5, "remove_on_fail must be True, False, an integer of at least 0"),
        ({}, "remove_on_fail must be an object with an age or a count, got {}"),
        ({"limit": 5}, "remove_on_fail must be an object with an age or a count"),
        ({"ages": 5}, "remove_on_fail must be made of age, count, limit, got 'ages'"),
        ({"count": -1}, "remove_on_fail.count must be True, False, an integer of at least 0"),
        ({"count": True}, "remove_on_fail.count must be"),
        ({"age": -5}, "remove_on_fail.age must be at least 1 ms, got -5"),
        ({"age": 5, "limit": 0}, "remove_on_fail.limit must be an integer of at least 1, got 0"),
        (Retention(count=-5), "remove_on_fail.count must be"),
    ],
)
def test_refused(value: Any, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Retention.parse(value, "remove_on_fail")
    assert message in str(caught.value)


@pytest.mark.parametrize("value", [10_001, {"count": 20_000}])
def test_many_kept_jobs_are_warned_of(value: Any) -> None:
    with pytest.warns(
        RetentionWarning, match=r"remove_on_complete(\.count)? keeps \d+ jobs; more than 10000"
    ):
        Retention.parse(value, "remove_on_complete")


@pytest.mark.parametrize("obj", [None, "x", [], {}, {"age": "x"}, float("inf"), {"count": True}])
def test_invalid_retention_on_the_wire_is_none(obj: Any) -> None:
    assert Retention.from_wire(obj) is None


def test_a_peer_that_keeps_all() -> None:
    assert Retention.from_wire(-7) == KEEP
    assert Retention.from_wire({"count": -1}) == KEEP
