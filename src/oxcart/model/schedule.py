"""Schedules: rules that add jobs repeatedly, and stored schedules.

A schedule fires at fixed intervals (``every``) or by a cron expression. Each run is a job; the worker that
claims it adds the next one first. ``next_run`` computes the next run of a cron expression; the server
computes intervals from the previous run.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from oxcart.model.cron import parse_cron, zone_offset
from oxcart.model.duration import Duration, parse_ms
from oxcart.model.errors import ValidationError
from oxcart.model.names import check_job_name

#: A point in time: a datetime with a zone, ISO text with an offset, or ms since 1970.
Instant = datetime | str | int

#: Policies for missed runs, and for a run that is due while the last still runs (Bridge).
Missed = Literal["skip", "once", "all"]
Overlap = Literal["beside", "skip", "queue"]

#: The time of the next run of a paused schedule: the last of the year 9999.
PAUSED_MS = 253_402_300_799_999

#: Ids with more parts belong to repeatable jobs, which older versions used instead of schedulers.
_MOST_PARTS = 4


def check_scheduler_id(scheduler_id: str) -> str:
    """Returns the id of a schedule if every peer accepts it.

    Raises:
        ValidationError: It is empty, or has so many colons that peers read it as a repeatable job.
    """
    check_job_name(scheduler_id, "scheduler id")
    if scheduler_id.count(":") >= _MOST_PARTS:
        raise ValidationError("scheduler id", "at most three ':'", scheduler_id)
    return scheduler_id


def is_legacy_id(scheduler_id: str) -> bool:
    """Returns whether an id is a repeatable job's: ``name:job id:end:zone:pattern``."""
    return scheduler_id.count(":") >= _MOST_PARTS


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """The rule of a schedule.

    ``build`` parses and checks what a user writes; the constructor checks nothing.

    Attributes:
        every: The interval in ms, or None for a cron expression.
        cron: The expression, or None for an interval.
        tz: The zone of the expression; None is the zone of the machine that computes a run.
        offset: Delay after each multiple of the interval, in ms; None follows the first run.
        start: No run before this, in ms.
        end: No run after this, in ms.
        limit: The most runs.
        immediately: Whether the first run of a cron expression is now.
    """

    every: int | None = None
    cron: str | None = None
    tz: str | None = None
    offset: int | None = None
    start: int | None = None
    end: int | None = None
    limit: int | None = None
    immediately: bool = False

    @property
    def text(self) -> str:
        """The rule in words, for log lines."""
        if self.every is not None:
            return f"every {self.every / 1000:g} s"
        return f"by cron {self.cron!r} ({self.tz or 'local time'})"

    @classmethod
    def build(
        cls,
        *,
        every: Duration | None = None,
        cron: str | None = None,
        tz: str | None = "UTC",
        offset: Duration | None = None,
        start: Instant | None = None,
        end: Instant | None = None,
        limit: int | None = None,
        immediately: bool = False,
    ) -> Schedule:
        """Parses and checks a user's arguments.

        Raises:
            ValidationError: A value is invalid, or two of them contradict each other.
        """
        if (every is None) == (cron is None):
            raise ValidationError("schedule", "either every or cron", {"every": every, "cron": cron})
        if immediately and (start is not None or every is not None):
            # An interval begins at once anyway.
            raise ValidationError("immediately", "with cron and without start", immediately)
        if limit is not None and (type(limit) is not int or limit < 1):
            raise ValidationError("limit", "an integer, at least 1", limit)
        interval = None if every is None else parse_ms(every, "every", minimum=1)
        if offset is not None and interval is None:
            raise ValidationError("offset", "with every alone", offset)
        behind = None if offset is None else parse_ms(offset, "offset")
        if behind is not None and interval is not None and behind >= interval:
            raise ValidationError("offset", f"less than every ({interval} ms)", offset)
        if cron is not None:
            parse_cron(cron)
            zone_offset(tz)
        return cls(
            every=interval,
            cron=cron,
            tz=None if cron is None else tz,
            offset=behind,
            start=None if start is None else parse_instant(start, "start"),
            end=None if end is None else parse_instant(end, "end"),
            limit=limit,
            immediately=immediately,
        )

    @classmethod
    def from_wire(cls, repeat: Mapping[str, Any]) -> Schedule:
        """Parses the ``repeat`` object in the options of a run, of any version."""
        pattern = repeat.get("pattern") or repeat.get("cron")  # `cron` before version 3
        return cls(
            every=_number(repeat.get("every")),
            cron=str(pattern) if pattern else None,
            tz="UTC" if repeat.get("utc") else repeat.get("tz"),
            start=_date(repeat.get("startDate")),
            end=_date(repeat.get("endDate")),
            limit=_number(repeat.get("limit")),
        )

    def wire(self, count: int) -> dict[str, Any]:
        """Returns the ``repeat`` object of the run with this number."""
        named = {
            "every": self.every,
            "pattern": self.cron,
            "tz": self.tz,
            "startDate": self.start,
            "endDate": self.end,
            "limit": self.limit,
            "count": count,
        }
        return {name: value for name, value in named.items() if value is not None}

    def following(self, now_ms: int) -> int | None:
        """Returns the next time of a cron expression after an instant, or None.

        Raises:
            ValidationError: The expression or the zone is invalid.
        """
        if self.cron is None:
            return None
        after = max(now_ms, self.start or 0)
        return parse_cron(self.cron).next_ms(after, self.tz, self.end)

    def is_over(self, now_ms: int, count: int) -> bool:
        """Returns whether the schedule ended before the run with this number."""
        return (self.limit is not None and count > self.limit) or (self.end is not None and now_ms > self.end)


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
    return _run(options, schedule.wire(1), now_ms, key, at_ms)


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
    return _run(found.options, schedule.wire(count), now_ms, found.id, at_ms)


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
    schedule = Schedule.from_wire(repeat)
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


class Scheduler(msgspec.Struct, frozen=True, kw_only=True):
    """A stored schedule.

    Attributes:
        id: Its id.
        name: The name of its runs.
        schedule: The rule.
        next_ms: When the next run is due, in ms; of a paused schedule `PAUSED_MS`.
        runs: The number of runs so far, with the next one if its job exists already; None if a peer did
            not count.
        data: The payload of its runs.
        options: The options of its runs, as on the wire.
        legacy: A repeatable job of an older version. BullMQ 5 and Oxcart continue it; BullMQ 6 adds no
            further run. Set it again as a schedule, and remove this one.
        names_runs: Whether the next run has its id already.
        declared_by: The module whose handler declares it; None for a schedule made by hand or by a peer.
    """

    id: str
    name: str
    schedule: Schedule
    next_ms: int
    runs: int | None = None
    data: Any = None
    options: dict[str, Any] = {}
    legacy: bool = False
    names_runs: bool = True
    declared_by: str | None = None

    @property
    def paused(self) -> bool:
        """Whether it makes no run until it is resumed."""
        return self.next_ms >= PAUSED_MS

    @property
    def next_at(self) -> datetime:
        """When the next run is due, in UTC."""
        return datetime.fromtimestamp(self.next_ms / 1000, UTC)

    @property
    def fired(self) -> int | None:
        """The number of runs whose time came: ``runs`` without the next one."""
        if self.runs is None or not self.names_runs or self.paused:
            return self.runs
        return max(0, self.runs - 1)

    @property
    def next_job_id(self) -> str | None:
        """The id of the next run; None while paused, and on Bridge, where a run gets its id when it fires."""
        return f"repeat:{self.id}:{self.next_ms}" if self.names_runs and not self.paused else None


def parse_instant(value: Instant, field: str) -> int:
    """Returns a point in time in ms since 1970.

    Raises:
        ValidationError: The value is no point in time, or has no zone.
    """
    form = "a datetime with a time zone, ISO text with an offset, or ms since 1970"
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ValidationError(field, form, value) from None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValidationError(field, form, value)
        return round(value.timestamp() * 1000)
    if type(value) is not int or value < 0:
        raise ValidationError(field, form, value)
    return value


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
