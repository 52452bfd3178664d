"""Erases a subject: the tables without the jobs of a correlation id.

A job belongs to a subject if one of its records has the correlation id. All rows of such a job leave bronze,
by rewriting the files that have some of them. The same version marks these days as stale, so that silver and
gold are rebuilt from the rest, by this command or, should it be killed, by the next build. Then all files
that the newest version does not name are deleted: those of older versions, and what killed writers left
behind. Should that be interrupted, the next erasure does it. A reader of an older version fails. A writer at
work loses its staged files and writes them again.

A job's id can be used again: a job of the same id without the correlation id stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import Window
from pyspark.sql import functions as fn

from oxcart.broker.export import EVENTS
from oxcart.model.metadata import check_correlation_id
from oxcart.spark.build.builder import Builder
from oxcart.spark.build.notes import made_stale
from oxcart.spark.lake.bronze import BRONZE
from oxcart.spark.lake.tables import Tables
from oxcart.spark.lake.upkeep import forget
from oxcart.spark.lake.versions import Change, File, Lake, LakeConflict, Version
from oxcart.spark.read.position import read_position
from oxcart.spark.read.spool import Spool

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Attempts when other writers change the same files meanwhile.
MOST_CONFLICTS = 3
#: The mark of a lake whose bronze is rewritten, but whose old versions may still exist: how many jobs and
#: rows went. It does not say whose: a hash of an id can be found by trying ids.
MARK = "erasing"
SPOOLS = "_spool"
_INGEST = "ingest:"
#: The columns that identify a row of a job in bronze.
_ROW = ("queue", "stream", "kind", "entry_id", "job_id")


class Erased(msgspec.Struct, frozen=True):
    """The result of an erasure, or of its dry run.

    Attributes:
        jobs: How many jobs, those of a killed erasure before it included.
        rows: How many rows of bronze, likewise.
        days: The days that were rebuilt.
    """

    jobs: int
    rows: int
    days: tuple[str, ...] = ()


def erase(tables: Tables, builder: Builder, correlation_id: str, *, dry_run: bool = False) -> Erased:
    """Removes the jobs of a correlation id from the tables.

    Args:
        tables: The lake's tables.
        builder: Builds silver and gold of the same lake.
        correlation_id: The subject.
        dry_run: Whether only to count.

    Raises:
        ValidationError: The correlation id is malformed.
        LakeConflict: Other writers changed the same files every time.
    """
    check_correlation_id(correlation_id)
    lake = tables.lake
    if dry_run:
        return _rewrite(tables, correlation_id, dry_run=True)
    with builder.turn.taken():  # else a pipeline beside it builds the same days all the time
        for left in reversed(range(MOST_CONFLICTS)):
            try:
                found = _rewrite(tables, correlation_id)
                if MARK not in lake.head().marks:
                    return found
                days = builder.refresh()
                break
            except LakeConflict:
                if not left:
                    raise
        _blank_spools(lake)
        forget(lake)
        done = _done(lake.head())
        lake.publish(Change("erased", marks={MARK: None}))
    return Erased(done.jobs, done.rows, tuple(days))


def subject(bronze: DataFrame, correlation_id: str) -> DataFrame:
    """Returns the rows of bronze of the jobs of a correlation id."""
    equal = fn.get_json_object("extra", "$.corr") == correlation_id  # Bridge's events carry it themselves
    mine = fn.coalesce(equal, fn.lit(False))
    jobs = bronze.filter(mine).select("queue", "job_id").distinct()
    rows = bronze.join(fn.broadcast(jobs), ["queue", "job_id"], "left_semi")
    # A record has the id of its event, so that ids order both.
    parts = fn.split("entry_id", "-")
    by_time = Window.partitionBy("queue", "job_id").orderBy(
        parts[0].cast("bigint"),
        fn.length(parts[1]),
        parts[1],
        fn.when(fn.col("stream") == EVENTS, 0).otherwise(1),
    )
    begins = (fn.col("stream") == EVENTS) & (fn.col("event") == "added")
    whole = Window.partitionBy("queue", "job_id", "_life")
    return (
        rows.withColumn("_life", fn.sum(fn.when(begins, 1).otherwise(0)).over(by_time))
        .withColumn("_mine", fn.max(fn.when(mine, 1).otherwise(0)).over(whole))
        .filter(fn.col("_mine") == 1)
        .drop("_mine")
    )


def _rewrite(tables: Tables, correlation_id: str, *, dry_run: bool = False) -> Erased:
    lake = tables.lake
    base = lake.head()
    if not base.of(BRONZE):
        return Erased(0, 0)
    bronze = tables.load_with_files(BRONZE, base.of(BRONZE))
    gone = subject(bronze, correlation_id).select("day", *_ROW, "_life", "_file").persist()
    try:
        by_file = {row["_file"]: row["count"] for row in gone.groupBy("_file").count().collect()}
        jobs = gone.select("queue", "job_id", "_life").distinct().count()
        found = Erased(jobs, sum(by_file.values()))
        if dry_run or not by_file:
            return found
        touched = [file for file in base.of(BRONZE) if file.path.rpartition("/")[2] in by_file]
        parts = {(str(row["day"]), row["queue"]) for row in gone.select("day", "queue").distinct().collect()}
        same = [fn.col(f"b.{name}").eqNullSafe(fn.col(f"g.{name}")) for name in _ROW]
        made: list[File] = []
        for pending in (False, True):
            some = [file for file in touched if file.pending is pending]
            kept = tables.load(BRONZE, some).alias("b").join(gone.alias("g"), same, "left_anti")
            made += tables.write(kept, BRONZE, pending) if some else []
    finally:
        gone.unpersist()
    before = _done(base)
    mark = {"jobs": before.jobs + found.jobs, "rows": before.rows + found.rows}
    files, old = made_stale(base, parts)
    removed = frozenset({*(file.path for file in touched), *old})
    # Neither the list of versions nor a log may name the subject.
    lake.publish(Change("erase", add=[*made, *files], remove=removed, marks={MARK: mark}), base)
    return found


def _done(version: Version) -> Erased:
    """What erasures have removed whose files are not deleted yet: this one, and killed ones before it."""
    mark = version.marks.get(MARK) or {}
    return Erased(mark.get("jobs", 0), mark.get("rows", 0))


def _blank_spools(lake: Lake) -> None:
    for name, value in lake.head().marks.items():
        if name.startswith(_INGEST):
            offsets = {key: read_position(at) for key, at in value.items()}
            Spool(lake.root / SPOOLS / name.removeprefix(_INGEST)).blank(offsets)
