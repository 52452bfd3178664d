"""Points in time as users write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from oxcart.model.errors import ValidationError
from oxcart.model.moment import parse_moment

#: 2026-11-15 12:00 UTC.
NOON = int(datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp() * 1000)
HOUR = 3_600_000


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2h", NOON - 2 * HOUR),
        ("90", NOON - 90_000),
        (timedelta(minutes=5), NOON - 300_000),
        (1000, 1000),
        (0, 0),
        ("21000d", 0),
        (timedelta(days=21_000), 0),
        ("2026-11-15T11:00Z", NOON - HOUR),
        ("2026-11-15T12:00+01:00", NOON - HOUR),
        (datetime(2026, 11, 15, 11, tzinfo=timezone(timedelta(hours=1))), NOON - 2 * HOUR),
        ("1970-01-01T00:00:01.001Z", 1001),
        (datetime(1970, 1, 1, 0, 0, 1, 1000, tzinfo=UTC), 1001),
        ("11:30Z", NOON - HOUR // 2),
        ("12:00Z", NOON),
        ("12:30Z", NOON - 24 * HOUR + HOUR // 2),
    ],
)
def test_a_moment_becomes_ms(value: Any, expected: int) -> None:
    assert parse_moment(value, "since", now_ms=NOON) == expected


def test_text_without_a_zone_is_local() -> None:
    local = datetime(2026, 11, 15, 11).astimezone()
    assert parse_moment("2026-11-15T11:00", "since", now_ms=NOON) == int(local.timestamp() * 1000)


@pytest.mark.parametrize("value", ["soon", "25:00", "", -1, True, 1.5, None, "2026-13-01", "1y"])
def test_what_is_no_moment_is_refused(value: Any) -> None:
    with pytest.raises(ValidationError, match=r"^since must be a duration back from now"):
        parse_moment(value, "since", now_ms=NOON)


def test_a_datetime_needs_a_zone() -> None:
    with pytest.raises(ValidationError, match="since must be a time with a zone"):
        parse_moment(datetime(2026, 11, 15), "since", now_ms=NOON)
