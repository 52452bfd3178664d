"""Silver and gold, day by day: what must be built anew, and building it.

A (day, queue) is built from its bronze and from the events of jobs that were open at the end of the queue's
day before. What it was built from is noted in a mark of the lake, so that a later run knows whether it must
be built again: more bronze came, the day before was built anew and hands on something else, or it is no
longer the queue's last day (only the last shows jobs that are still open). A day's tables appear together.

May touch: the lake, through Spark.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import functions as fn

from oxcart.spark.lake import Change, File, Lake, Version
from oxcart.spark.tables import BRONZE, OPEN, Tables
from oxcart.spark.transforms import build

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The mark that says what has been built, and of what.
BUILT = "built"
_MADE = (*build.SILVER, *build.GOLD)

Progress = Callable[[str, int, int], None]


class Basis(msgspec.Struct, frozen=True):
    """What a (day, queue) is built from.

    Attributes:
        rows: Rows of bronze.
        before: The day whose open jobs it begins with, empty for none.
        carried: A fingerprint of them.
        last: Whether it is the queue's last day.
    """

    rows: int
    before: str
    carried: str
    last: bool


class Builder:
    """Builds silver and gold.

    Args:
        spark: The session.
        lake: The lake.
        progress: Told what is done, how much of it, of how much.
    """

    def __init__(self, spark: SparkSession, lake: Lake, *, progress: Progress | None = None) -> None:
        self._tables = Tables(spark, lake)
        self._lake = lake
        self._progress = progress or (lambda what, done, all_: None)

    def refresh(self) -> list[str]:
        """Builds what is out of date, oldest first; returns the days."""
        return self._build(self._stale)

    def rebuild(self, first: str, last: str) -> list[str]:
        """Builds the days of a range, out of date or not, and then what follows from them."""
        days = {day for _, day, _ in self._lake.head().parts(BRONZE) if first <= day <= last}
        done = []
        for at, day in enumerate(sorted(days)):
            self._progress("rebuild", at, len(days))
            self._day(day, {queue for _, found, queue in self._lake.head().parts(BRONZE) if found == day})
            done.append(day)
        self._progress("rebuild", len(days), len(days))
        return sorted({*done, *self.refresh()})

    def _build(self, stale: Callable[[], dict[str, set[str]]]) -> list[str]:
        done: list[str] = []
        while wanted := stale():
            day = min(wanted)
            self._progress("build", len(done), len(done) + len(wanted))
            self._day(day, wanted[day])
            done.append(day)
        self._progress("build", len(done), len(done))
        return sorted(set(done))

    def _stale(self) -> dict[str, set[str]]:
        """Days and queues whose basis is not what they were built from."""
        head = self._lake.head()
        noted = _noted(head)
        found: dict[str, set[str]] = {}
        for (day, queue), basis in bases(head).items():
            if noted.get(queue, {}).get(day, [None, ""])[0] != msgspec.to_builtins(basis):
                found.setdefault(day, set()).add(queue)
        return found

    def _day(self, day: str, queues: set[str]) -> None:
        base = self._lake.head()
        basis = {queue: bases(base)[day, queue] for queue in queues}
        bronze = self._tables.read(BRONZE, base, days=[day], queues=queues)
        made = build.tables(bronze, self._carried(base, basis))
        try:
            files: list[File] = []
            for name in _MADE:
                files += self._tables.write(_of_day(made[name], day, basis), name)
            handed = self._tables.write(made["open"].withColumn("day", fn.lit(day).cast("date")), OPEN)
        finally:
            build.release(made)
        noted = _noted(base)
        for queue, one in basis.items():
            mine = [file for file in handed if file.queue == queue]
            noted.setdefault(queue, {})[day] = [msgspec.to_builtins(one), _fingerprint(self._lake, mine)]
        parts = frozenset((name, day, queue) for name in (*_MADE, OPEN) for queue in queues)
        self._lake.publish(
            Change(f"build {day}", add=[*files, *handed], replace=parts, marks={BUILT: noted}), base
        )

    def _carried(self, base: Version, basis: dict[str, Basis]) -> DataFrame | None:
        parts = [(one.before, queue) for queue, one in basis.items() if one.before]
        files = [file for file in base.of(OPEN) if (file.day, file.queue) in parts]
        if not files:
            return None
        picked = Version(base.number, base.at_ms, base.why, {file.path: file for file in files}, base.marks)
        return self._tables.read(OPEN, picked)


def bases(version: Version) -> dict[tuple[str, str], Basis]:
    """What every (day, queue) would be built from now."""
    rows: dict[str, dict[str, int]] = {}
    for file in version.of(BRONZE):
        days = rows.setdefault(file.queue, {})
        days[file.day] = days.get(file.day, 0) + file.rows
    noted = _noted(version)
    found = {}
    for queue, days in rows.items():
        before = ""
        for day in sorted(days):
            carried = noted.get(queue, {}).get(before, [None, ""])[1] if before else ""
            found[day, queue] = Basis(days[day], before, carried, day == max(days))
            before = day
    return found


def _noted(version: Version) -> dict[str, dict[str, list[Any]]]:
    """Queue → day → what it was built from, and the fingerprint of what it hands on."""
    noted = version.marks.get(BUILT, {})
    return {queue: dict(days) for queue, days in noted.items()}


def _fingerprint(lake: Lake, files: Iterable[File]) -> str:
    """The same for the same events, whatever their order and files; empty for none."""
    from pyarrow import parquet

    ids: list[str] = []
    for path in lake.paths(files):
        found = parquet.read_table(path, columns=["stream", "entry_id"], partitioning=None)
        pairs = zip(found["stream"].to_pylist(), found["entry_id"].to_pylist(), strict=True)
        ids += (f"{stream} {entry_id}" for stream, entry_id in pairs)
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:16] if ids else ""


def _of_day(rows: DataFrame, day: str, basis: dict[str, Basis]) -> DataFrame:
    """Rows that ended on the day; on a queue's last day also those that have not ended."""
    last = [queue for queue, one in basis.items() if one.last]
    today = fn.lit(day).cast("date")
    running = fn.col("day").isNull() & _is_in(fn.col("queue"), last)
    kept = rows.filter((fn.col("day") == today) | running)
    return kept.withColumn("day", today)


def _is_in(column: Any, values: Iterable[str]) -> Any:
    found = list(values)
    return column.isin(*found) if found else fn.lit(False)
