"""The lake's tables in Spark: read by manifest, and written to files that a later version publishes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pyspark.sql import functions as fn

from oxcart.model.errors import ValidationError
from oxcart.model.target import base_of
from oxcart.spark.errors import unwrapped
from oxcart.spark.lake.bronze import BRONZE
from oxcart.spark.lake.columns import STORED
from oxcart.spark.lake.versions import File, Lake, Version
from oxcart.spark.read.entries import SCHEMA, day_of
from oxcart.spark.transforms import build
from oxcart.spark.transforms.failures import CLUSTER_SCHEMA
from oxcart.spark.transforms.flows import PATH_SCHEMA, critical_paths
from oxcart.spark.transforms.lanes import join_lanes, split_lanes
from oxcart.spark.transforms.metrics import TALLY_SCHEMA
from oxcart.spark.transforms.schedules import SCHEDULE_SCHEMA, schedules

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: The transforms name silver and gold. `open` has the events of jobs that are open at the end of a day.
OPEN = "open"
#: Sums of a queue's last day from which its next span goes on; for builds alone.
TALLIES = "tallies"
TABLES = (BRONZE, OPEN, *build.SILVER, *build.GOLD)
#: Gold over all queues and days, computed when a query names it: columns, source tables, and function.
DERIVED: Mapping[str, tuple[str, tuple[str, ...], Callable[..., DataFrame]]] = {
    "critical_paths": (PATH_SCHEMA, ("flows", "jobs", "attempts"), critical_paths),
    "schedules": (SCHEDULE_SCHEMA, ("firings",), schedules),
}
#: The columns of files. Spark would take seconds to read them from the plans of all transforms.
SCHEMAS: Mapping[str, str] = {
    **{table: ", ".join(map(" ".join, columns.items())) for table, columns in STORED.items()},
    BRONZE: SCHEMA,
    OPEN: SCHEMA,
    TALLIES: f"day date, queue string, {TALLY_SCHEMA}, {CLUSTER_SCHEMA}",
}
_CROSSES_DAYS = "critical_paths"
#: How far the clock of a client may be ahead of the server's.
SKEW_MS = 60_000


class Tables:
    """The tables of a lake.

    Args:
        spark: The session.
        lake: The lake.
    """

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self.spark = spark
        self.lake = lake

    def read(
        self,
        table: str,
        version: Version | None = None,
        *,
        days: Iterable[str] | None = None,
        queues: Iterable[str] | None = None,
    ) -> DataFrame:
        """Returns a table of a version, by default the newest.

        Raises:
            ValidationError: There is no such table.
        """
        version = version or self.lake.head()
        if table in DERIVED:
            return self._derive(table, version, days, queues)
        if table not in TABLES:
            raise ValidationError("table", f"one of {', '.join((*TABLES, *DERIVED))}", table)
        if queues is not None:
            wanted = set(queues)
            queues = {name for name in version.queues if name in wanted or base_of(name) in wanted}
        return self.load(table, version.of(table, days=days, queues=queues))

    def _derive(
        self, table: str, version: Version, days: Iterable[str] | None, queues: Iterable[str] | None
    ) -> DataFrame:
        schema, sources, make = DERIVED[table]
        if not version.of(sources[0]):
            return split_lanes(self.spark.createDataFrame([], schema), ())
        wanted = None
        if days is not None and table == _CROSSES_DAYS:
            days = list(days)
            wanted = self._days_of_trees(version, days)
        made = make(*(join_lanes(self.read(source, version, days=wanted)) for source in sources))
        found = split_lanes(made, version.queues)
        if days is not None:
            found = found.filter(fn.col("day").cast("string").isin(list(days)))
        return found if queues is None else found.filter(fn.col("queue").isin(list(queues)))

    def _days_of_trees(self, version: Version, days: Sequence[str]) -> list[str]:
        """The days that have all jobs on the critical paths of roots that ended on some days.

        A child is created with its tree and ends before its parent. So no job of a tree ended before the
        root was created. A job of these days is no root if it decided how long its own parent took, and
        that may have ended on a later day.
        """
        known = sorted({file.day for file in version.of("jobs")})
        if not days or not known:
            return []
        last = max(days)
        jobs, flows = (self.read(table, version, days=days) for table in ("jobs", "flows"))
        created = fn.coalesce("created_ms", "started_ms", "ended_ms")
        first = _first_day(jobs.agg(fn.min(created)), min(days))
        if first < min(days):  # by a job that waited for long: what do the parents among them say?
            span = [day for day in known if first <= day <= last]
            parents = join_lanes(self.read("flows", version, days=span)).select(
                fn.col("parent_queue").alias("queue"), fn.col("parent_id").alias("job_id")
            )
            above = join_lanes(jobs).join(parents.distinct(), ["queue", "job_id"], "left_semi")
            first = _first_day(above.agg(fn.min(created)), min(days))
        wanted, step = flows.select("parent_queue", "parent_id").distinct(), 1
        while later := [day for day in known if day > last]:
            if not self._has_open_parents(version, wanted, [day for day in known if first <= day <= last]):
                break
            last = later[:step][-1]
            step *= 2
        return [day for day in known if first <= day <= last]

    def _has_open_parents(self, version: Version, wanted: DataFrame, days: Sequence[str]) -> bool:
        """Whether some of the parents have not ended by the last of some days."""
        jobs = join_lanes(self.read("jobs", version, days=days)).filter(fn.col("ended_ms").isNotNull())
        ended = jobs.select(fn.col("queue").alias("parent_queue"), fn.col("job_id").alias("parent_id"))
        return not wanted.join(ended, ["parent_queue", "parent_id"], "left_anti").isEmpty()

    def load(self, table: str, files: Iterable[File]) -> DataFrame:
        """Returns the rows of some files of a table."""
        files = list(files)
        if not files:
            return self.spark.createDataFrame([], SCHEMAS[table])
        reader = self.spark.read.schema(SCHEMAS[table]).option("recursiveFileLookup", "true")
        return reader.parquet(*self.lake.paths(files))

    def write(self, rows: DataFrame, table: str, pending: Column | bool = False) -> list[File]:
        """Writes rows into new files, by day and queue; readers see them once they are published.

        Args:
            rows: The rows.
            table: Their table.
            pending: Which of them go into files that the next build replaces.

        Raises:
            LakeError: The file system is full.
        """
        stage = self.lake.staging()
        named = rows.withColumns(
            {
                "p_day": fn.col("day").cast("string"),
                "p_queue": fn.col("queue"),
                "p_pending": fn.lit(pending) if isinstance(pending, bool) else pending,
            }
        )
        if table not in (BRONZE, OPEN, TALLIES):
            named = split_lanes(named, self.lake.head().queues)
        try:
            writer = named.write.option("compression", "zstd").partitionBy("p_day", "p_queue", "p_pending")
            writer.mode("append").parquet(str(stage))
            return [self._take(path, table) for path in sorted(stage.rglob("*.parquet"))]
        except Exception as error:
            raise unwrapped(error, self.lake.root) from error
        finally:
            shutil.rmtree(stage, ignore_errors=True)

    def register(self, version: Version | None = None, text: str | None = None) -> Mapping[str, DataFrame]:
        """Registers tables of one version as views, for SQL.

        Args:
            version: The version; by default the newest.
            text: The query; only the tables that it names are registered. Without it all stored tables are.
        """
        version = version or self.lake.head()
        named = TABLES if text is None else _named(text)
        found = {table: self.read(table, version) for table in named}
        for table in found.keys() & {BRONZE, OPEN}:  # stored by the names of streams
            found[table] = split_lanes(found[table], version.queues)
        for table, rows in found.items():
            rows.createOrReplaceTempView(table)
        return found

    def _take(self, path: Path, table: str) -> File:
        folders = (path.parents[2], path.parents[1], path.parents[0])
        day, queue, pending = (unquote(folder.name.partition("=")[2]) for folder in folders)
        return self.lake.take(path, table, day, queue, pending=pending == "true")


def _named(text: str) -> list[str]:
    """The tables whose names occur in a query, as tables or otherwise."""
    words = set(re.findall(r"\w+", text.lower()))
    return [table for table in (*TABLES, *DERIVED) if table in words]


def _first_day(least: DataFrame, otherwise: str) -> str:
    """The day of the only value of a result, a time in ms by some client's clock; unless null or later."""
    found = least.collect()[0][0]
    return otherwise if found is None else min(otherwise, day_of(max(0, found - SKEW_MS)))
