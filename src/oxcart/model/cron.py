"""Cron expressions and their next times, equal to those of Node's cron-parser to the millisecond.

Five fields (minute, hour, day of month, month, day of week) or six, with seconds first; missing fields are
filled from the left. Names of months and days, lists, ranges, steps, ``?``, ``L`` (last day of the month;
with a weekday its last one) and ``#`` (the n-th such day of the month), and ``@hourly`` to ``@yearly``.
If both kinds of day are given, either suffices.

Peers share a schedule: the worker that claims a run computes the next one, and all must compute the same
time. So the search follows cron-parser 4.9, one field at a time, also when a clock is set forward or back: a
run in the skipped hour happens an hour later, a run in the repeated hour happens once, and a pattern that
fires every hour fires in all of them. The same limit on steps decides which expressions never fire.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from oxcart.model.errors import ValidationError

#: Steps of a search after which an expression counts as one without further runs.
MOST_STEPS = 10_000

_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_DAYS_IN_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_MONTHS = {
    name: number + 1
    for number, name in enumerate(
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
    )
}
_WEEKDAYS = {name: number for number, name in enumerate(["sun", "mon", "tue", "wed", "thu", "fri", "sat"])}
_NAME = re.compile("[a-z]{3}", re.IGNORECASE)
_FIXED_ZONE = re.compile(r"gmt|utc(?:([+-])([0-9]{1,2})(?::([0-9]{2}))?)?", re.IGNORECASE)

_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_SECOND, _MINUTE, _HOUR = 1_000, 60_000, 3_600_000

#: Returns the offset from UTC in ms at an instant in ms.
Offset = Callable[[int], int]


class _Field:
    """One field of an expression: its bounds and its allowed characters."""

    def __init__(self, name: str, low: int, high: int, characters: str, names: dict[str, int]) -> None:
        self.name = name
        self.low = low
        self.high = high
        self.allowed = re.compile(characters, re.ASCII)
        self.names = names

    def parse(self, text: str) -> list[int | str]:
        """Returns the values, sorted, with repetitions; values with an ``L`` stay text, at the end."""
        if self.names:
            text = _NAME.sub(self._number_of, text)
        if not self.allowed.fullmatch(text):
            raise self._wrong(text)
        text = text.replace("*" if "*" in text else "?", f"{self.low}-{self.high}")
        numbers: list[int] = []
        words: list[str] = []
        for part in text.split(","):
            if "L" in part and "-" not in part and part.count("/") < 2:
                words.append(part.partition("/")[0])
            else:
                numbers += self._part(part)
        return [*sorted(numbers), *sorted(words)]

    def _number_of(self, found: re.Match[str]) -> str:
        name = found.group().lower()
        if name not in self.names:
            raise self._wrong(found.group())
        return str(self.names[name])

    def _part(self, part: str) -> list[int]:
        """Parses a number, a range or steps of a range."""
        span, slash, step = part.partition("/")
        if slash and span.isdigit():
            span = f"{span}-{self.high}"
        if not part or "/" in step or (slash and not step.isdigit()):
            raise self._wrong(part)
        first, dash, rest = span.partition("-")
        if not dash:
            if not first.isdigit() or slash:
                raise self._wrong(part)
            number = int(first)
            if not self.low <= number <= self.high:
                raise self._wrong(part)
            return [number % 7 if self.name == "day of week" else number]
        last = rest.partition("-")[0] or "0"
        if not first.isdigit() or not last.isdigit():
            raise self._wrong(part)
        if int(first) < self.low or int(last) > self.high or int(first) > int(last):
            raise self._wrong(part)
        return self._range(int(first), int(last), int(step or 1))

    def _range(self, first: int, last: int, step: int) -> list[int]:
        if step == 0:
            raise ValidationError("cron", f"a step of at least 1 in {self.name}", step)
        # Sunday is 0 and 7: a range that ends with one contains both.
        sunday = self.name == "day of week" and last % 7 == 0
        found = [0] if sunday else []
        return found + [n for n in range(first, last + 1, step) if not (sunday and n == 0)]

    def _wrong(self, got: str) -> ValidationError:
        return ValidationError("cron", f"a {self.name} from {self.low} to {self.high}", got)


_PLAIN = r"[,*\d/-]+"
_FIELDS = (
    _Field("second", 0, 59, _PLAIN, {}),
    _Field("minute", 0, 59, _PLAIN, {}),
    _Field("hour", 0, 23, _PLAIN, {}),
    _Field("day of month", 1, 31, r"[?,*\dL/-]+", {}),
    _Field("month", 1, 12, _PLAIN, _MONTHS),
    _Field("day of week", 0, 7, r"[?,*\dL#/-]+", _WEEKDAYS),
)
_DEFAULTS = ("0", "*", "*", "*", "*", "*")


class Cron:
    """A parsed expression; ``parse_cron`` returns one.

    Attributes:
        text: The expression as it was written.
    """

    __slots__ = (
        "_every_hour",
        "_hours",
        "_last_day",
        "_last_weekdays",
        "_minutes",
        "_month_days",
        "_months",
        "_most_days",
        "_nth",
        "_seconds",
        "_weekdays",
        "_weekdays_open",
        "text",
    )

    def __init__(self, text: str) -> None:
        self.text = text
        parts = _ALIASES.get(text, text).split()
        if not 1 <= len(parts) <= 6:
            raise ValidationError("cron", "an expression of up to six fields", text)
        parts = [*_DEFAULTS[: 6 - len(parts)], *parts]
        parts[5], self._nth = _nth_of(parts[5])
        seconds, minutes, hours, days, months, weekdays = (
            field.parse(part) for field, part in zip(_FIELDS, parts, strict=True)
        )
        days = _within_month(days, months)
        self._seconds = frozenset(seconds)
        self._minutes = frozenset(minutes)
        self._hours = frozenset(hours)
        self._every_hour = len(hours) == 24
        self._months = frozenset(months)
        self._month_days = frozenset(days)
        self._most_days = len(days)
        self._last_day = any(isinstance(day, str) for day in days)
        self._weekdays = frozenset(weekdays)
        self._weekdays_open = len(weekdays) == 8
        self._last_weekdays = frozenset(_weekday_of(day) for day in weekdays if isinstance(day, str))

    def __repr__(self) -> str:
        return f"Cron({self.text!r})"

    def next_ms(self, after_ms: int, tz: str | None = None, end_ms: int | None = None) -> int | None:
        """Returns the first time after an instant at which the expression fires, or None.

        Args:
            after_ms: The instant, in ms.
            tz: The time zone; None is this machine's zone.
            end_ms: The latest time that counts.

        Raises:
            ValidationError: There is no such time zone.
        """
        return _Search(self, zone_offset(tz), after_ms).run(end_ms)

    def is_day(self, local: datetime) -> bool:
        """Returns whether the expression fires on the day of this local time, in some month."""
        weekday = local.isoweekday() % 7
        by_date = local.day in self._month_days or (self._last_day and _ends_month(local, 1))
        by_week = weekday in self._weekdays or (weekday in self._last_weekdays and _ends_month(local, 7))
        open_date = self._most_days >= _DAYS_IN_MONTH[local.month - 1]
        if not by_date and (not by_week or self._weekdays_open):
            return False
        if open_date and not self._weekdays_open and not by_week:
            return False
        return self._nth == 0 or (local.day + 6) // 7 == self._nth

    def is_month(self, local: datetime) -> bool:
        """Returns whether the expression fires in the month of this local time."""
        return local.month in self._months


@lru_cache(maxsize=1024)
def parse_cron(text: str) -> Cron:
    """Parses an expression.

    Raises:
        ValidationError: It is invalid; the message names the part.

    Example:
        >>> parse_cron("0 9 * * MON-FRI").next_ms(0, "UTC")
        32400000
    """
    if not isinstance(text, str) or not text.strip():
        raise ValidationError("cron", "an expression such as '0 9 * * MON-FRI'", text)
    return Cron(text)


@lru_cache(maxsize=256)
def zone_offset(tz: str | None) -> Offset:
    """Returns a function from an instant to a zone's offset from UTC, both in ms.

    Args:
        tz: A name such as ``Europe/Berlin``, ``UTC``, ``UTC+5:30``; None or ``local`` is this machine's zone.

    Raises:
        ValidationError: There is no such zone.
    """
    if tz is None or tz.lower() in ("local", "system", "default"):
        return _local_offset
    fixed = _FIXED_ZONE.fullmatch(tz)
    if fixed:
        sign, hours, minutes = fixed.groups()
        ahead = (int(hours or 0) * 60 + int(minutes or 0)) * _MINUTE * (-1 if sign == "-" else 1)
        return lambda ms: ahead
    try:
        zone = ZoneInfo(tz)
    except (KeyError, ValueError, OSError):
        hint = "a time zone such as 'Europe/Berlin' (a system without any needs: pip install tzdata)"
        raise ValidationError("tz", hint, tz) from None

    def offset(ms: int) -> int:
        ahead = (_EPOCH_UTC + ms * _MS).astimezone(zone).utcoffset()
        return 0 if ahead is None else ahead // _MS

    return offset


def _local_offset(ms: int) -> int:
    offset = datetime.fromtimestamp(ms // 1000, UTC).astimezone().utcoffset()
    assert offset is not None
    return round(offset.total_seconds()) * 1000


def _nth_of(part: str) -> tuple[str, int]:
    """Splits ``MON#2`` into the day and the number, or 0 without a number."""
    day, mark, nth = part.partition("#")
    if not mark:
        return part, 0
    if set(part) & set(",/-") or nth not in ("1", "2", "3", "4", "5"):
        raise ValidationError(
            "cron", "a day of week like MON#2, from #1 to #5, without list, range or step", part
        )
    return day, int(nth)


def _within_month(days: list[int | str], months: list[int | str]) -> list[int | str]:
    """Removes the days that the only month of an expression does not have."""
    if len(months) != 1:
        return days
    length = _DAYS_IN_MONTH[int(months[0]) - 1]
    if isinstance(days[0], int) and days[0] > length:
        raise ValidationError("cron", f"a day of month from 1 to {length} in that month", days[0])
    return [day for day in days if day == "L" or (isinstance(day, int) and day <= length)]


def _weekday_of(word: str) -> int:
    if not word[0].isdigit():
        raise ValidationError("cron", "a day of week before 'L', such as 5L", word)
    return int(word[0]) % 7


def _ends_month(local: datetime, days: int) -> bool:
    return (local + timedelta(days=days)).month != local.month


class _Search:
    """The search from an instant to the next match, one field at a time.

    Local times are naive; ``_ms`` is the instant, ``_local`` the local time of that instant.
    """

    def __init__(self, cron: Cron, offset: Offset, after_ms: int) -> None:
        self._cron = cron
        self._offset = offset
        self._start = after_ms
        self._set_forward: int | None = None  # the hour into which the clock was set forward
        self._set_back: int | None = None  # the repeated hour
        self._go(after_ms)

    def run(self, end_ms: int | None) -> int | None:
        """Returns the next match, or None."""
        for _ in range(MOST_STEPS - 1):
            if end_ms is not None and self._ms > end_ms:
                return None
            if self._step():
                return self._ms
        return None

    def _step(self) -> bool:
        """Advances to the next candidate if a field does not match; returns whether all match."""
        cron, local = self._cron, self._local
        if not cron.is_day(local):
            self._next_day()
        elif not cron.is_month(local):
            self._next_month()
        elif not self._is_hour(local.hour):
            pass
        elif local.minute not in cron._minutes:
            self._tick(self._next_minute)
        elif local.second not in cron._seconds or self._ms == self._start:
            self._tick(self._next_second)
        else:
            return True
        return False

    def _is_hour(self, hour: int) -> bool:
        """Returns whether the hour matches; advances if it does not."""
        hours = self._cron._hours
        if hour not in hours:
            if self._set_forward != hour:
                self._set_forward = None
                self._tick(self._next_hour)
                return False
            if hour - 1 not in hours:
                self._next_hour()
                return False
            return True  # this hour also fires for the skipped one
        if self._set_back == hour:
            self._set_back = None
            self._tick(self._next_hour)
            return False
        return True

    def _tick(self, move: Callable[[], None]) -> None:
        """Advances, and records whether the clock was set meanwhile."""
        before = self._local.hour
        move()
        if self._cron._every_hour:
            return
        now = self._local
        if now.hour - before == 2:
            self._set_forward = now.hour
        elif now.hour == before and now.minute == 0 and now.second == 0:
            self._set_back = now.hour

    # -- advance by one unit, to its beginning

    def _next_month(self) -> None:
        year, month = divmod(self._local.year * 12 + self._local.month, 12)
        length = _days_in(year, month + 1)
        self._calendar(self._local.replace(year=year, month=month + 1, day=min(self._local.day, length)))
        self._begin(day=1, hour=0, minute=0, second=0, microsecond=0)

    def _next_day(self) -> None:
        before = self._ms
        self._calendar(self._local + timedelta(days=1))
        self._begin(hour=0, minute=0, second=0, microsecond=0)
        if self._ms == before:  # the day begins with a skipped hour
            self._next_hour()

    def _next_hour(self) -> None:
        before = self._ms
        self._go(before + _HOUR)
        self._begin(minute=0, second=0, microsecond=0)
        if self._ms <= before:
            self._go(self._ms + _HOUR)

    def _next_minute(self) -> None:
        before = self._ms
        self._go(before + _MINUTE)
        self._begin(second=0, microsecond=0)
        if self._ms < before:
            self._go(self._ms + _HOUR)

    def _next_second(self) -> None:
        before = self._ms
        self._go(before + _SECOND)
        self._begin(microsecond=0)
        if self._ms < before:
            self._go(self._ms + _HOUR)

    # -- conversion between local time and instant

    def _go(self, ms: int) -> None:
        self._ms = ms
        self._ahead = self._offset(ms)
        self._local = _EPOCH + (ms + self._ahead) * _MS

    def _begin(self, **parts: Any) -> None:
        self._calendar(self._local.replace(**parts))

    def _calendar(self, local: datetime) -> None:
        """Goes to a local time. A repeated time takes the current offset; a skipped time moves behind the gap
        by its distance into the gap.
        """
        wall = (local - _EPOCH) // _MS
        guess = wall - self._ahead
        ahead = self._offset(guess)
        if ahead != self._ahead:
            guess = wall - ahead
            then = self._offset(guess)
            if then != ahead:
                guess = wall - min(ahead, then)
        self._go(guess)


def _days_in(year: int, month: int) -> int:
    following = datetime(year + month // 12, month % 12 + 1, 1)
    return (following - timedelta(days=1)).day
