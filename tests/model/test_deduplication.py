"""Deduplication windows: what a user writes, and the form on the wire."""

from __future__ import annotations

from typing import Any

import pytest

from oxcart.model.deduplication import Deduplication
from oxcart.model.errors import ValidationError
from oxcart.model.options import JobOptions


@pytest.mark.parametrize(
    ("written", "wire"),
    [
        ("a", {"id": "a"}),
        ({"id": "a", "ttl": "5s"}, {"id": "a", "ttl": 5000}),
        ({"id": "a", "ttl": 2, "extend": True}, {"id": "a", "ttl": 2000, "extend": True}),
        ({"id": "a", "ttl": "1ms"}, {"id": "a", "ttl": 1}),
        ({"id": "a", "replace": True}, {"id": "a", "replace": True}),
        (
            Deduplication.build("a", keep_last_if_active=True),
            {"id": "a", "keepLastIfActive": True},
        ),
    ],
)
def test_ways_to_write_it(written: Any, wire: dict[str, Any]) -> None:
    rule = JobOptions.build(deduplication=written).deduplication
    assert rule is not None
    assert rule.wire() == wire
    assert Deduplication.from_wire(wire) == rule


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("", "deduplication id must be a non-empty string"),
        (5, "deduplication must be a name, or a mapping with an id, got 5"),
        ({"ttl": "5s"}, "a mapping with an id"),
        ({"id": "a", "ttl": 0}, "ttl must be"),
        ({"id": "a", "extend": True}, "extend must be False for a window without a ttl"),
        ({"id": "a", "replace": 1}, "replace must be True or False, got 1"),
        ({"id": "a", "tll": 5}, "a mapping of id, ttl, extend, replace, keep_last_if_active"),
    ],
)
def test_refused(written: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        JobOptions.build(deduplication=written)


@pytest.mark.parametrize("value", [None, 5, [], {}, {"id": 5}])
def test_an_invalid_window_on_the_wire_is_none(value: Any) -> None:
    assert Deduplication.from_wire(value) is None


def test_odd_values_of_a_peer() -> None:
    assert Deduplication.from_wire({"id": "a", "ttl": "soon", "extend": 1}) == Deduplication("a", None, True)


def test_a_ttl_of_zero_on_the_wire_is_kept() -> None:
    found = Deduplication.from_wire({"id": "a", "ttl": 0})
    assert found is not None
    assert found.ttl == 0
