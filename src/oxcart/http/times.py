"""Durations and times as HTTP clients write them: Go's durations and RFC 3339."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from oxcart.model.duration import MAX_MS, Duration, parse_ms
from oxcart.model.errors import ValidationError

_UNIT_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # micro sign
    "μs": 1_000,  # Greek mu
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60 * 1_000_000_000,
    "h": 3600 * 1_000_000_000,
}
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")


def parse_go_ms(value: Duration, field: str, *, minimum: int = 0) -> int:
    """Converts a duration into whole milliseconds.

    Text is Go's (``300ms``, ``1.5h``, ``2h45m``, ``10us``) or ours (``2d``); a number is seconds, as in
    every option of Oxcart. Rounding never turns a positive duration into zero.

    Args:
        value: The duration.
        field: The name of the field, for the error.
        minimum: The smallest allowed value in milliseconds.

    Raises:
        ValidationError: The value is no duration, or is outside its bounds.

    Example:
        >>> parse_go_ms("1h30m", "timeout"), parse_go_ms("1.5h", "timeout"), parse_go_ms("10us", "delay")
        (5400000, 5400000, 1)
    """
    if not isinstance(value, str) or not _WHOLE.fullmatch(value.strip()):
        return parse_ms(value, field, minimum=minimum)
    exact = sum(float(number) * _UNIT_NS[unit] for number, unit in _PART.findall(value.strip())) / 1e6
    if exact > MAX_MS:
        raise ValidationError(field, "at most 100 years", value)
    whole = max(round(exact), 1) if exact > 0 else 0
    if whole < minimum:
        raise ValidationError(field, f"at least {minimum} ms", value)
    return whole


def parse_time_ms(value: str, field: str) -> int:
    """Converts an RFC 3339 time into ms since 1970.

    Raises:
        ValidationError: The text is no time, has no zone, or is before 1970.
    """
    try:
        at = datetime.fromisoformat(value)
        if at.tzinfo is not None and (ms := int(at.timestamp() * 1000)) >= 0:
            return ms
    except (ValueError, OverflowError):
        pass
    raise ValidationError(field, "a time such as 2026-11-15T12:00:00Z", value)


def rfc3339(at: datetime) -> str:
    """Returns a time with milliseconds; older Pythons parse exactly 3 or 6 fractional digits.

    Example:
        >>> rfc3339(datetime(2026, 11, 15, 12, tzinfo=UTC))
        '2026-11-15T12:00:00.000Z'
    """
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def rfc3339_ms(ms: int) -> str:
    """Returns ms since 1970 as `rfc3339` does."""
    return rfc3339(datetime.fromtimestamp(ms / 1000, UTC))
