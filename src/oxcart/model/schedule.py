"""Schedules: rules that add jobs repeatedly, and stored schedules.

A schedule fires at fixed intervals (``every``) or by a cron expression. Each run is a job; the worker that
claims it adds the next one first.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from oxcart.model.cron import parse_cron, zone_offset
from oxcart.model.duration import Duration, parse_ms
from oxcart.model.errors import ValidationError
from oxcart.model.names import check_job_name
from oxcart.model.options import DEFAULT_OPTIONS, JobOptions

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
        job_options: The same as jobs have them.
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
    job_options: JobOptions = DEFAULT_OPTIONS
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
