from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxcart.model.duration import MAX_MS, parse_ms
from oxcart.model.errors import ValidationError


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (0, 0),
        (5, 5000),
        (0.25, 250),
        (0.29, 290),
        (0.00001, 1),
        ("250ms", 250),
        ("30s", 30_000),
        ("5m", 300_000),
        ("1h30m", 5_400_000),
        ("2d", 172_800_000),
        ("1w", 604_800_000),
        ("1.5s", 1500),
        (" 10s ", 10_000),
        ("30", 30_000),
        ("0.5", 500),
        (timedelta(minutes=2), 120_000),
        (timedelta(microseconds=10), 1),
        (timedelta(0), 0),
    ],
)
def test_forms(value: Any, ms: int) -> None:
    assert parse_ms(value, "delay") == ms


@pytest.mark.parametrize(
    "value",
    [True, False, float("nan"), None, "", "soon", "5 apples", "1h-5m", "s", "1e3s", "٣s", [], {}, b"5s"],
)
def test_not_a_duration(value: Any) -> None:
    with pytest.raises(ValidationError, match="delay must be a duration: ") as caught:
        parse_ms(value, "delay")
    assert caught.value.field == "delay"


@pytest.mark.parametrize("value", [-1, -0.1, -1e-9, "-5", timedelta(seconds=-1), float("-inf"), -(10**30)])
def test_negative(value: Any) -> None:
    with pytest.raises(ValidationError, match="delay must be at least 0, got "):
        parse_ms(value, "delay")


def test_a_hundred_years_are_the_longest() -> None:
    assert MAX_MS == 3_153_600_000_000
    assert parse_ms("36500d", "delay") == MAX_MS
    with pytest.raises(ValidationError, match="delay must be at most 100 years, got '36500d1ms'"):
        parse_ms("36500d1ms", "delay")


@pytest.mark.parametrize("value", [1e300, float("inf"), 10**30, "99999999999d", timedelta.max])
def test_too_long(value: Any) -> None:
    with pytest.raises(ValidationError, match="delay must be at most 100 years, got "):
        parse_ms(value, "delay")


def test_minimum() -> None:
    assert parse_ms("1ms", "timeout", minimum=1) == 1
    with pytest.raises(ValidationError, match="timeout must be at least 1 ms, got 0"):
        parse_ms(0, "timeout", minimum=1)


@given(st.integers(0, MAX_MS))
def test_milliseconds_survive_every_form(ms: int) -> None:
    assert parse_ms(f"{ms}ms", "x") == ms
    assert parse_ms(timedelta(milliseconds=ms), "x") == ms
    assert parse_ms(ms / 1000, "x") == ms
