"""Erasing a subject: the tables without the jobs of a correlation id.

A job is a subject's if it ever had the correlation id, as far as records tell. All that bronze holds of such
a job goes, by rewriting the files that have some of it; in the same version the notes of the days concerned
are dropped, so that silver and gold are built anew from what is left, by this command or, should it be
killed, by the next one that builds. In the end versions that still had the subject are forgotten, and their
files deleted (should that be interrupted, the next erasing does it); whoever reads one meanwhile fails.

A job's id can be used again: what was added under it before or later, and never had the id, stays.

May touch: the lake, through Spark; the rows in its spools that bronze has already.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import Window
from pyspark.sql import functions as fn

from oxcart.model.metadata import check_correlation_id
from oxcart.spark.bronze import BRONZE
from oxcart.spark.builder import Builder, without_notes
from oxcart.spark.delta import Delta, has_logs
from oxcart.spark.lake import Change, File, Lake, LakeConflict, Version
from oxcart.spark.position import read_position
from oxcart.spark.spool import Spool
from oxcart.spark.stream import EVENTS
from oxcart.spark.tables import Tables
from oxcart.spark.upkeep import forget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: How often it is tried when other writers change the same files meanwhile.
MOST_CONFLICTS = 3
#: The mark of a lake that has been rewritten, but whose old versions may still be there.
MARK = "erasing"
SPOOLS = "_spool"
_INGEST = "ingest:"
#: What names a row of bronze that belongs to a job.
_ROW = ("queue", "stream", "kind", "entry_id", "job_id")


class Erased(msgspec.Struct, frozen=True):
    """What was erased, or would be.

    Attributes:
        jobs: How many jobs.
        rows: How many rows of bronze.
        days: The days that were built anew.
    """

    jobs: int
    rows: int
    days: tuple[str, ...] = ()


def erase(tables: Tables, builder: Builder, correlation_id: str, *, dry_run: bool = False) -> Erased:
    """Makes the tables what they would be without the jobs of a correlation id.

    Args:
        tables: The lake's tables.
        builder: What builds silver and gold of the same lake.
        correlation_id: The subject.
        dry_run: Whether only to count.

    Raises:
        ValidationError: It is no correlation id.
        LakeConflict: Others changed the same files every time.
    """
    check_correlation_id(correlation_id)
    lake, jobs, rows = tables.lake, 0, 0
    for left in reversed(range(MOST_CONFLICTS)):
        try:
            found = _rewrite(tables, correlation_id, dry_run=dry_run)
            jobs, rows = jobs + found.jobs, rows + found.rows
            if dry_run or MARK not in lake.head().marks:
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
    """The rows of bronze that are about jobs of a correlation id."""
    told = fn.get_json_object("extra", "$.corr") == correlation_id
    mine = fn.coalesce(told, fn.lit(False))  # Bridge's events carry it themselves
    jobs = bronze.filter(mine).select("queue", "job_id").distinct()
    rows = bronze.join(fn.broadcast(jobs), ["queue", "job_id"], "left_semi")
    # Records stand under the id of their event, so that ids tell the order of both.
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


def _rewrite(tables: Tables, correlation_id: str, *, dry_run: bool) -> Erased:
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
    """Puts files in the place of others; what a day without bronze has is gone with it."""
    touched = list(touched)
    removed = {file.path for file in touched}
    left = {(file.day, file.queue) for file in base.of(BRONZE) if file.path not in removed}
    left |= {(file.day, file.queue) for file in made}
    parts = {(file.day, file.queue) for file in touched}
    empty = parts - left
    removed |= {file.path for file in base.files.values() if (file.day, file.queue) in empty}
    lake.publish(
        # The subject's name is not for the list of versions.
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
