"""The runs of schedules in the words of BullMQ: the ``repeat`` object in a run's options.

`next_run` computes the next run of a cron expression; the server computes intervals from the previous run.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from oxcart.model.schedule import Schedule, Scheduler


def read_repeat(repeat: Mapping[str, Any]) -> Schedule:
    """Parses the ``repeat`` object in the options of a run, of any version."""
    pattern = repeat.get("pattern") or repeat.get("cron")  # `cron` before version 3
    return Schedule(
        every=_number(repeat.get("every")),
        cron=str(pattern) if pattern else None,
        tz="UTC" if repeat.get("utc") else repeat.get("tz"),
        start=_date(repeat.get("startDate")),
        end=_date(repeat.get("endDate")),
        limit=_number(repeat.get("limit")),
    )


def repeat_of(schedule: Schedule, count: int) -> dict[str, Any]:
    """Returns the ``repeat`` object of the run with this number."""
    named = {
        "every": schedule.every,
        "pattern": schedule.cron,
        "tz": schedule.tz,
        "startDate": schedule.start,
        "endDate": schedule.end,
        "limit": schedule.limit,
        "count": count,
    }
    return {name: value for name, value in named.items() if value is not None}


class NextRun(msgspec.Struct, frozen=True):
    """The run after a claimed one.

    Attributes:
        options: Its options without delay and id, which the server adds.
        at_ms: Its due time; None if the server computes it.
    """

    options: dict[str, Any]
    at_ms: int | None


def first_run(
    schedule: Schedule, options: Mapping[str, Any], now_ms: int, key: str, at_ms: int | None = None
) -> NextRun | None:
    """Returns the first run of a new schedule, or None if it never fires.

    Args:
        schedule: The rule.
        options: The options of every run.
        now_ms: The time.
        key: The schedule's id.
        at_ms: The time of the first run, if the caller has computed it.
    """
    if schedule.is_over(now_ms, 1):
        return None
    if schedule.cron is not None and at_ms is None:
        at_ms = now_ms if schedule.immediately else schedule.following(now_ms)
        if at_ms is None:
            return None
    return _run(options, repeat_of(schedule, 1), now_ms, key, at_ms)


def resumed_run(found: Scheduler, now_ms: int) -> NextRun | None:
    """Returns the run that resumes a paused schedule, or None if it never fires again.

    Args:
        found: The schedule.
        now_ms: The time.
    """
    schedule, count = found.schedule, (found.runs or 0) + 1
    if schedule.is_over(now_ms, count):
        return None
    at_ms = None
    if schedule.cron is not None:
        at_ms = schedule.following(now_ms)
        if at_ms is None:
            return None
    return _run(found.options, repeat_of(schedule, count), now_ms, found.id, at_ms)


def next_run(options: Mapping[str, Any], now_ms: int, key: str) -> NextRun | None:
    """Returns the run after a claimed one, or None if that was the last.

    Args:
        options: The claimed run's options, as on the wire.
        now_ms: The time.
        key: The schedule's id.

    Raises:
        ValidationError: A peer's expression or zone is invalid.
    """
    repeat = options.get("repeat")
    if not isinstance(repeat, Mapping):
        return None
    schedule = read_repeat(repeat)
    count = (_number(repeat.get("count")) or 0) + 1
    if schedule.is_over(now_ms, count):
        return None
    at_ms = None
    if schedule.cron is not None:
        now = max(now_ms, _number(options.get("prevMillis")) or 0)
        at_ms = schedule.following(now)
        if at_ms is None:
            return None
    elif schedule.every is None:
        return None
    # Other fields of a peer stay unchanged.
    kept = {name: value for name, value in repeat.items() if name not in ("immediately", "offset")}
    own = {"attempts": 0, **options}
    backoff = own.get("backoff")
    if isinstance(backoff, int | float) and not isinstance(backoff, bool):
        own["backoff"] = {"type": "fixed", "delay": backoff}
    return _run(own, kept | {"count": count}, now_ms, key, at_ms)


def _run(
    options: Mapping[str, Any], repeat: dict[str, Any], now_ms: int, key: str, at_ms: int | None
) -> NextRun:
    own = {name: value for name, value in options.items() if name != "prevMillis"}
    own |= {"repeat": repeat, "timestamp": now_ms, "repeatJobKey": key}
    if at_ms is not None:
        own["prevMillis"] = at_ms
    return NextRun(own, at_ms)


def _number(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return int(float(value))
    except (ValueError, OverflowError):
        return None


def _date(value: Any) -> int | None:
    """Parses a date in a peer's options: ms, or ISO text."""
    number = _number(value)
    if number is None and isinstance(value, str):
        try:
            return round(datetime.fromisoformat(value).timestamp() * 1000)
        except ValueError:
            return None
    return number
