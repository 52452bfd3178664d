"""Erases a subject: the tables without the jobs of a correlation id.

A job belongs to a subject if one of its records has the correlation id. All rows of such a job leave bronze,
by rewriting the files that have some of them. The same version drops the notes of these days, so that silver
and gold are rebuilt from the rest, by this command or, should it be killed, by the next build. Then versions
that still have the subject are dropped with their files; should that be interrupted, the next erasure does
it. A reader of a dropped version fails.

A job's id can be used again: a job of the same id without the correlation id stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import Window
from pyspark.sql import functions as fn

from oxcart.broker.export import EVENTS
from oxcart.model.metadata import check_correlation_id
from oxcart.spark.build.builder import Builder, without_notes
from oxcart.spark.lake.bronze import BRONZE
from oxcart.spark.lake.delta import Delta, has_logs
from oxcart.spark.lake.tables import Tables
from oxcart.spark.lake.upkeep import forget
from oxcart.spark.lake.versions import Change, File, Lake, LakeConflict, Version
from oxcart.spark.read.position import read_position
from oxcart.spark.read.spool import Spool

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Attempts when other writers change the same files meanwhile.
MOST_CONFLICTS = 3
#: The mark of a lake whose bronze is rewritten, but whose old versions may still exist.
MARK = "erasing"
SPOOLS = "_spool"
_INGEST = "ingest:"
#: The columns that identify a row of a job in bronze.
_ROW = ("queue", "stream", "kind", "entry_id", "job_id")


class Erased(msgspec.Struct, frozen=True):
    """The result of an erasure, or of its dry run.

    Attributes:
        jobs: How many jobs.
        rows: How many rows of bronze.
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
    lake, jobs, rows = tables.lake, 0, 0
    if dry_run:
        return _rewrite(tables, correlation_id, dry_run=True)
    with builder.turn.taken():  # else a pipeline beside it builds the same days all the time
        for left in reversed(range(MOST_CONFLICTS)):
            try:
                found = _rewrite(tables, correlation_id)
                jobs, rows = jobs + found.jobs, rows + found.rows
                if MARK not in lake.head().marks:
                    return found
                days = builder.refresh()
                break
            except LakeConflict:
                if not left:
                    raise
        _blank_spools(lake)
        forget(lake, lake.head().number)
    if has_logs(lake):
        Delta(lake).follow()
    lake.publish(Change("erased", marks={MARK: None}))
    return Erased(jobs, rows, tuple(days))


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
    bronze = tables.read(BRONZE, base).withColumn("_file", fn.col("_metadata.file_name"))
    gone = subject(bronze, correlation_id).select(*_ROW, "_life", "_file").persist()
    try:
        by_file = {row["_file"]: row["count"] for row in gone.groupBy("_file").count().collect()}
        jobs = gone.select("queue", "job_id", "_life").distinct().count()
        found = Erased(jobs, sum(by_file.values()))
        if dry_run or not by_file:
            return found
        touched = [file for file in base.of(BRONZE) if file.path.rpartition("/")[2] in by_file]
        same = [fn.col(f"b.{name}").eqNullSafe(fn.col(f"g.{name}")) for name in _ROW]
        kept = tables.load(BRONZE, touched).alias("b").join(gone.alias("g"), same, "left_anti")
        made = tables.write(kept, BRONZE)
    finally:
        gone.unpersist()
    _publish(lake, base, touched, made)
    return found


def _publish(lake: Lake, base: Version, touched: Iterable[File], made: list[File]) -> None:
    """Replaces files; a day that loses all its bronze loses its other tables too."""
    touched = list(touched)
    removed = {file.path for file in touched}
    left = {(file.day, file.queue) for file in base.of(BRONZE) if file.path not in removed}
    left |= {(file.day, file.queue) for file in made}
    parts = {(file.day, file.queue) for file in touched}
    empty = parts - left
    removed |= {file.path for file in base.files.values() if (file.day, file.queue) in empty}
    lake.publish(
        # The list of versions must not name the subject.
        Change(
            "erase", add=made, remove=frozenset(removed), marks={**without_notes(base, parts), MARK: True}
        ),
        base,
    )


def _blank_spools(lake: Lake) -> None:
    for name, value in lake.head().marks.items():
        if name.startswith(_INGEST):
            offsets = {key: read_position(at) for key, at in value.items()}
            Spool(lake.root / SPOOLS / name.removeprefix(_INGEST)).blank(offsets)
