"""Cron expressions: what is parsed, what is refused, and the next times. Node agrees: see interop."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from oxcart.model.cron import parse_cron
from oxcart.model.errors import ValidationError

FROM = "2026-01-01 00:00:00"


def at(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def following(pattern: str, after: str = FROM, zone: str = "UTC", times: int = 1) -> list[str]:
    """Returns the next times as local times of the zone."""
    found, now = [], at(after, zone)
    for _ in range(times):
        next_ms = parse_cron(pattern).next_ms(now, zone)
        assert next_ms is not None
        found.append(f"{datetime.fromtimestamp(next_ms / 1000, ZoneInfo(zone)):%Y-%m-%d %H:%M:%S}")
        now = next_ms
    return found


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("* * * * *", "2026-01-01 00:01:00"),
        ("*/15 * * * * *", "2026-01-01 00:00:15"),
        ("30 9 * * MON-FRI", "2026-01-01 09:30:00"),
        ("30 9 * * sat,sun", "2026-01-03 09:30:00"),
        ("0 0 29 2 *", "2028-02-29 00:00:00"),
        ("0 12 L * ?", "2026-01-31 12:00:00"),
        ("0 12 * * 5L", "2026-01-30 12:00:00"),
        ("0 12 * * 5-7", "2026-01-02 12:00:00"),
        ("0 12 * * 6-7", "2026-01-03 12:00:00"),
        ("0 12 * * 7", "2026-01-04 12:00:00"),
        ("0 12 * * MON#2", "2026-01-12 12:00:00"),
        ("0 0 13 * 5", "2026-01-02 00:00:00"),  # the 13th, or a Friday
        ("0 0 1 jan *", "2027-01-01 00:00:00"),
        ("0 10-20/5 * * *", "2026-01-01 10:00:00"),
        ("5/20 * * * *", "2026-01-01 00:05:00"),
        ("0 0 * * 7", "2026-01-04 00:00:00"),
        ("@weekly", "2026-01-04 00:00:00"),
        ("@yearly", "2027-01-01 00:00:00"),
    ],
)
def test_the_next_time(pattern: str, expected: str) -> None:
    assert following(pattern) == [expected]


def test_the_next_time_is_after_the_instant_never_at_it() -> None:
    assert parse_cron("* * * * * *").next_ms(at(FROM), "UTC") == at(FROM) + 1_000
    assert parse_cron("* * * * * *").next_ms(at(FROM) + 1, "UTC") == at(FROM) + 1_000


def test_a_run_in_the_hour_that_is_left_out_happens_an_hour_later() -> None:
    assert following("30 2 * * *", "2026-03-28 12:00:00", "Europe/Berlin", 2) == [
        "2026-03-29 03:30:00",
        "2026-03-30 02:30:00",
    ]


def test_a_run_in_the_hour_that_comes_twice_happens_once() -> None:
    assert following("30 2 * * *", "2026-10-24 12:00:00", "Europe/Berlin", 2) == [
        "2026-10-25 02:30:00",
        "2026-10-26 02:30:00",
    ]


def test_a_run_in_every_hour_happens_in_both() -> None:
    assert following("0 * * * *", "2026-10-25 00:30:00", "Europe/Berlin", 4) == [
        "2026-10-25 01:00:00",
        "2026-10-25 02:00:00",
        "2026-10-25 02:00:00",
        "2026-10-25 03:00:00",
    ]


def test_nothing_fires_after_the_end() -> None:
    cron = parse_cron("0 0 1 * *")
    assert cron.next_ms(at(FROM), "UTC", at("2026-01-31 23:59:59")) is None
    assert cron.next_ms(at(FROM), "UTC", at("2026-02-01 00:00:00")) == at("2026-02-01 00:00:00")


def test_an_expression_that_never_fires_has_no_next_time() -> None:
    assert parse_cron("0 0 31 4,6 *").next_ms(at(FROM), "UTC") is None


@pytest.mark.parametrize("zone", ["UTC+5:30", "utc-3", "GMT", "local", None])
def test_zones_that_are_no_names(zone: str | None) -> None:
    assert parse_cron("* * * * *").next_ms(at(FROM), zone) == at(FROM) + 60_000


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "  ",
        "61 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "5-1 * * * *",
        "*/0 * * * *",
        "1,,2 * * * *",
        "* * * FOO *",
        "* * 30 2 *",
        "* * * * 1#6",
        "* * * * 1,2#1",
        "* * * * L",
        "0 * * * * * *",
        "@often",
        "* * * * MON#",
    ],
)
def test_invalid_expressions_are_refused(pattern: str) -> None:
    with pytest.raises(ValidationError, match="cron"):
        parse_cron(pattern)


def test_unknown_zone_is_refused() -> None:
    with pytest.raises(ValidationError, match="Mars/Olympus"):
        parse_cron("* * * * *").next_ms(0, "Mars/Olympus")


@pytest.mark.parametrize("month", range(1, 13))
def test_the_last_day_of_each_month_is_its_own(month: int) -> None:
    days = {2: 28, 4: 30, 6: 30, 9: 30, 11: 30}.get(month, 31)
    assert following(f"0 0 L {month} *", after="2025-12-31 12:00:00") == [f"2026-{month:02}-{days} 00:00:00"]
    with pytest.raises(ValidationError, match="a day of month from 1 to"):
        parse_cron(f"0 0 {30 if month == 2 else days + 1} {month} *")
