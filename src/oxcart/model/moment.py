"""Points in time: users write datetimes, ms, durations back from now, or text; the wire has ms since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta

from oxcart.model.duration import parse_ms
from oxcart.model.errors import ValidationError

#: What every option of a point in time accepts: a datetime with a zone, ms since 1970, or how long ago as
#: ``"2h"`` or a timedelta. Text may also be a time: ``"2026-11-15T12:00Z"``, ``"02:30"``.
When = datetime | int | str | timedelta

_FORM = (
    "a duration back from now such as '2h', a time such as '2026-11-15T12:00Z' or '02:30', "
    "a datetime with a zone, or ms since 1970"
)


def parse_moment(value: When, field: str, *, now_ms: int) -> int:
    """Converts a point in time into ms since 1970.

    Text without a zone is in the local zone. A time of day is the latest one that has passed.

    Args:
        value: The point in time.
        field: The name of the option, for the error.
        now_ms: The current time, from which durations count back.

    Raises:
        ValidationError: The value is no point in time, or a datetime has no zone.

    Example:
        >>> parse_moment("2h", "since", now_ms=7_200_000)
        0
    """
    if isinstance(value, datetime):
        if value.tzinfo is None:  # the zones of producer, worker and operator differ
            raise ValidationError(field, "a time with a zone, e.g. datetime.now(UTC)", value)
        return round(value.timestamp() * 1000)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, timedelta):
        return max(0, now_ms - parse_ms(value, field))
    if isinstance(value, str):
        return _read(value.strip(), field, now_ms)
    raise ValidationError(field, _FORM, value)


def _read(text: str, field: str, now_ms: int) -> int:
    try:
        at = datetime.fromisoformat(text)
        return round(at.timestamp() * 1000)  # without a zone: in the local one
    except (ValueError, OverflowError, OSError):
        pass
    try:
        if ":" in text:  # "10" is ten seconds, not ten o'clock
            return _latest(time.fromisoformat(text), now_ms)
        return max(0, now_ms - parse_ms(text, field))
    except (ValidationError, ValueError) as error:
        raise ValidationError(field, _FORM, text) from error


def _latest(clock: time, now_ms: int) -> int:
    now = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(clock.tzinfo)
    at = datetime.combine(now.date(), clock, clock.tzinfo or now.tzinfo)
    return round((at if at <= now else at - timedelta(days=1)).timestamp() * 1000)
