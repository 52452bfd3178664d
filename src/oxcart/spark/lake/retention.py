"""How long tables keep their rows: by age for each table, and by the bytes of the whole lake.

Days are dropped whole. Rows that are still open stay, whatever their day: they are in pending files. The
newest day of a table always stays.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta

from oxcart.model.duration import parse_ms
from oxcart.model.errors import ValidationError
from oxcart.spark.lake.bronze import BRONZE
from oxcart.spark.lake.columns import BUILDS, OPEN, STORED, unknown_table
from oxcart.spark.lake.files import FIRST_DAY, File
from oxcart.spark.lake.versions import Change, Lake, Version
from oxcart.spark.read.entries import day_of

log = logging.getLogger("oxcart.spark.pipeline")

DAY_MS = 86_400_000
#: The share of the budget from which on each look warns.
WARN_AT = 0.8
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True)
class Retention:
    """The limits of a lake.

    Attributes:
        ages: How long each table keeps a day, in ms after its end. Tables that are not in it keep all days.
        max_bytes: How many bytes the files of all tables may have; None for no bound.
    """

    ages: Mapping[str, int] = field(default_factory=dict)
    max_bytes: int | None = None

    @classmethod
    def read(cls, ages: Iterable[str] = (), max_bytes: str | None = None) -> Retention:
        """Reads limits as a user writes them.

        Args:
            ages: ``90d`` for all tables, or ``events=30d`` for one, which comes before the former.
            max_bytes: A size, for example ``50GB``.

        Raises:
            ValidationError: A table does not exist, an age is less than a day, or a size is no size.
        """
        found: dict[str, int] = {}
        named: dict[str, int] = {}
        for text in ages:
            table, given, age = text.rpartition("=")
            ms = parse_ms(age, "retain", minimum=DAY_MS)
            if not given:
                found = dict.fromkeys(STORED, ms)
            elif table not in STORED:
                raise unknown_table(table)
            else:
                named[table] = ms
        return cls({**found, **named}, None if max_bytes is None else parse_size(max_bytes, "max-bytes"))


def parse_size(text: str, name: str) -> int:
    """Returns a size in bytes: ``500MB``, ``50G``, or a number of bytes. Units are powers of 1024.

    Raises:
        ValidationError: It is no size, or 0.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise ValidationError(name, "a size such as 500MB or 50GB", text)
    return int(float(found[1]) * _UNITS[found[2].lower()])


def retain(lake: Lake, limits: Retention) -> int:
    """Drops the days that are older than their table keeps them, and the oldest days over the budget.

    Returns:
        How many files the tables have fewer. They are deleted by `oxcart.spark.lake.upkeep.expire`.

    Raises:
        LakeConflict: Another writer removed one of the files first.
    """
    dropped = _drop_old(lake, limits.ages) if limits.ages else 0
    return dropped + (_fit(lake, limits.max_bytes) if limits.max_bytes is not None else 0)


def live_bytes(version: Version) -> int:
    """Returns the bytes of all files of a version."""
    return sum(file.size for file in version.files.values())


def _drop_old(lake: Lake, ages: Mapping[str, int]) -> int:
    head, now = lake.head(), lake.clock()
    gone: list[File] = []
    for table, age in ages.items():
        if table == OPEN:
            continue  # it follows bronze
        # A day ends with its last ms, so that each row stays at least for the age.
        gone += _settled(head, table, day_of(max(0, now - age)))
    return _drop(lake, head, gone, "retain")


def _fit(lake: Lake, most: int) -> int:
    """Drops the oldest days of all tables until the lake fits; warns before it has to."""
    head = lake.head()
    size = live_bytes(head)
    days = sorted({file.day for table in STORED for file in _settled(head, table, "9999")})
    if size <= most:
        if size > WARN_AT * most and days:
            log.warning(
                "the lake has %d of %d bytes (--max-bytes): beyond that, days are dropped, beginning with %s",
                size,
                most,
                days[0],
            )
        return 0
    gone: list[File] = []
    for day, later in zip(days, [*days[1:], "9999"], strict=True):
        if size <= most:
            break
        mine = [file for table in STORED for file in _settled(head, table, later) if file not in gone]
        gone += mine
        size -= sum(file.size for file in mine)
        log.warning("the lake is over its %d bytes (--max-bytes): the rows of %s are dropped", most, day)
    if size > most:
        log.warning("the lake has %d bytes after all days but the last were dropped, over %d", size, most)
    return _drop(lake, head, gone, "fit")


def _settled(version: Version, table: str, before: str) -> list[File]:
    """The files of a table before a day that have ended rows alone; not those of its newest day."""
    files = version.of(table)
    newest = max((file.day for file in files), default="")
    return [file for file in files if file.day < min(before, newest) and not file.pending]


def _drop(lake: Lake, head: Version, gone: list[File], why: str) -> int:
    from oxcart.spark.build.notes import without_dropped

    first = str(head.marks.get(FIRST_DAY, ""))
    if bronze := [file.day for file in gone if file.table == BRONZE]:
        first = max(first, str(date.fromisoformat(max(bronze)) + timedelta(days=1)))
    notes, old = without_dropped(head, first)
    # The open jobs of a day are needed while its note is: the next day of a queue begins with them.
    needed = {file.day for file in (*head.of(BUILDS), *notes) if file.path not in old}
    gone += [file for file in head.of(OPEN) if file.day not in needed and file.day < first]
    if not gone and not old:
        return 0
    marks = {FIRST_DAY: first} if first and first != head.marks.get(FIRST_DAY) else {}
    removed = frozenset({*(file.path for file in gone), *old})
    lake.publish(Change(why, add=notes, remove=removed, marks=marks), head)
    return len(gone)
