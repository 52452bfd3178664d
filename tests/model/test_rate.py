"""Limits of a job's type: what is one, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from oxcart.model.errors import ValidationError
from oxcart.model.rate import RateLimit


@pytest.mark.parametrize(
    ("value", "limit"),
    [
        (None, None),
        ({"max_concurrent": 1}, RateLimit(1, None)),
        ({"max_per_minute": 1}, RateLimit(None, 1)),
        ({"max_concurrent": 3, "max_per_minute": 60}, RateLimit(3, 60)),
        ({"max_concurrent": None, "max_per_minute": 2}, RateLimit(None, 2)),
        (RateLimit(max_per_minute=5), RateLimit(None, 5)),
        (RateLimit(2, 5), RateLimit(2, 5)),
    ],
)
def test_limits_are_read(value: Any, limit: RateLimit | None) -> None:
    assert RateLimit.parse(value) == limit


@pytest.mark.parametrize("value", [{}, [], 5, "60", True, RateLimit()])
def test_what_has_no_limit_is_refused(value: Any) -> None:
    with pytest.raises(
        ValidationError, match=r"^limits must be an object with max_concurrent or max_per_minute"
    ):
        RateLimit.parse(value, "limits")


@pytest.mark.parametrize("key", ["max_concurrent", "max_per_minute"])
@pytest.mark.parametrize("most", [0, -1, True, 1.5, "3", 2.0])
def test_a_limit_is_a_whole_number_of_at_least_one(key: str, most: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        RateLimit.parse({key: most})
    assert str(refused.value) == f"rate_limit.{key} must be an integer, at least 1, got {most!r}"


def test_another_key_is_refused_by_its_name() -> None:
    with pytest.raises(ValidationError) as refused:
        RateLimit.parse({"max_concurrent": 1, "max_per_hour": 3})
    expected = "rate_limit must be made of max_concurrent, max_per_minute, got 'max_per_hour'"
    assert str(refused.value) == expected


def test_a_limit_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        RateLimit(1).max_concurrent = 2  # type: ignore[misc]
