"""The lake's tables in Spark: read by Delta's list of files, and written to files that are published later.

Files have instants as timestamps (``ended_at``) and the name of a stream as queue and lane. Transforms have
instants in ms (``ended_ms``), and bronze and ``open`` have the name of the stream in ``queue``. This module
converts between the two; `Tables.register` shows the tables to SQL as files have them.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from oxcart.model.errors import ValidationError
from oxcart.model.target import base_of
from oxcart.spark.errors import unwrapped
from oxcart.spark.lake.bronze import BRONZE
from oxcart.spark.lake.columns import BUILDS, INSTANTS, OPEN, STORED, public, public_name
from oxcart.spark.lake.versions import File, Lake, Version
from oxcart.spark.read.entries import COLUMNS, SCHEMA, day_of
from oxcart.spark.transforms import build
from oxcart.spark.transforms.failures import CLUSTER_SCHEMA
from oxcart.spark.transforms.flows import PATH_SCHEMA, critical_paths
from oxcart.spark.transforms.lanes import join_lanes, split_lanes
from oxcart.spark.transforms.metrics import TALLY_SCHEMA
from oxcart.spark.transforms.schedules import SCHEDULE_SCHEMA, schedules
from oxcart.spark.views.catalogue import VIEWS
from oxcart.spark.views.dialect import SPARK
from oxcart.spark.views.objectives import load_objectives

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Sums of a queue's last day from which its next span goes on; for builds alone.
TALLIES = "tallies"
TABLES = (BRONZE, OPEN, *build.SILVER, *build.GOLD)
#: Gold over all queues and days, computed when a query names it: columns, source tables, and function.
DERIVED: Mapping[str, tuple[str, tuple[str, ...], Callable[..., DataFrame]]] = {
    "critical_paths": (PATH_SCHEMA, ("flows", "jobs", "attempts"), critical_paths),
    "schedules": (SCHEDULE_SCHEMA, ("firings",), schedules),
}
#: The columns of transforms. Spark would take seconds to read them from the plans of all transforms.
SCHEMAS: Mapping[str, str] = {
    **{table: ", ".join(map(" ".join, columns.items())) for table, columns in STORED.items()},
    BRONZE: SCHEMA,
    OPEN: SCHEMA,
    TALLIES: f"day date, queue string, {TALLY_SCHEMA}, {CLUSTER_SCHEMA}",
}
_CROSSES_DAYS = "critical_paths"
#: Tables that transforms have by the names of streams.
_BY_STREAM = (BRONZE, OPEN)
#: Spark's default is a type that Delta does not have.
_TIMESTAMPS = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
#: Nobody reads the file ``_SUCCESS``. Hadoop starts a process (``chmod``) for every file and folder.
_NO_MARKER = ("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
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
        spark.conf.set(*_TIMESTAMPS)

    def read(
        self,
        table: str,
        version: Version | None = None,
        *,
        days: Iterable[str] | None = None,
        queues: Iterable[str] | None = None,
        streams: Iterable[str] | None = None,
    ) -> DataFrame:
        """Returns a table of a version, by default the newest, with instants in ms.

        Args:
            table: The table.
            version: The version.
            days: Only these days.
            queues: Only these queues, with all their lanes, or streams.
            streams: Only these streams of a stored table: a queue without its lanes, or a lane.

        Raises:
            ValidationError: There is no such table.
        """
        version = version or self.lake.head()
        if table in DERIVED:
            return self._derive(table, version, days, queues)
        if table not in TABLES:
            raise ValidationError("table", f"one of {', '.join((*TABLES, *DERIVED))}", table)
        return self.load(table, version.of(table, days=days), queues=queues, streams=streams)

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
        found = split_lanes(made, streams_of(version))
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

    def load(
        self,
        table: str,
        files: Iterable[File],
        *,
        queues: Iterable[str] | None = None,
        streams: Iterable[str] | None = None,
    ) -> DataFrame:
        """Returns the rows of some files of a table, with instants in ms.

        Args:
            table: The table.
            files: The files.
            queues: As in `read`.
            streams: As in `read`.
        """
        files = list(files)
        if not files:
            return self.spark.createDataFrame([], SCHEMAS[table])
        rows = self._stored(table, files)
        stream = fn.concat_ws("@", "queue", "lane") if table in STORED else fn.col("queue")
        if streams is not None:
            exact = sorted(streams)
            # Files are read by the plain column; lanes are left out after that.
            rows = rows.filter(fn.col("queue").isin(sorted({*exact, *map(base_of, exact)})))
            rows = rows.filter(stream.isin(exact))
        if queues is not None:
            wanted = sorted(queues)
            rows = rows.filter(fn.col("queue").isin(wanted) | stream.isin(wanted))
        return self._internal(table, rows)

    def _internal(self, table: str, rows: DataFrame, *more: str) -> DataFrame:
        """Rows of files as transforms have them."""
        if table not in STORED:
            return rows
        rows = rows.select(
            *(
                fn.unix_millis(public_name(name)).alias(name) if name in INSTANTS else fn.col(name)
                for name in STORED[table]
            ),
            *more,
        )
        return join_lanes(rows).select(*COLUMNS, *more) if table in _BY_STREAM else rows

    def load_with_files(self, table: str, files: Iterable[File]) -> DataFrame:
        """Returns the rows of some files as `load` does, each with the name of its file in ``_file``."""
        rows = self._stored(table, files).withColumn("_file", fn.col("_metadata.file_name"))
        return self._internal(table, rows, "_file")

    def _stored(self, table: str, files: Iterable[File]) -> DataFrame:
        """The rows of files as they are there."""
        schema = SCHEMAS[table] if table not in STORED else _text(public(table))
        files = list(files)
        if not files:
            return self.spark.createDataFrame([], schema)
        reader = self.spark.read.schema(schema).option("recursiveFileLookup", "true")
        return reader.parquet(*self.lake.paths(files))

    def write(
        self,
        rows: DataFrame,
        table: str,
        pending: Column | bool | None = None,
        *,
        streams: Iterable[str] | None = None,
        parts: int | None = None,
    ) -> list[File]:
        """Writes rows into new files, by day; readers see them once they are published.

        Args:
            rows: The rows, with instants in ms, by the names of streams.
            table: Their table.
            pending: Which of them go into files that the next build replaces or takes; unless given, all of
                bronze and none of other tables.
            streams: All streams of the rows; unless given, a query finds them.
            parts: How many files each day gets at most; unless given, as many as the rows have partitions.

        Raises:
            LakeError: The file system is full.
        """
        stage = self.lake.staging()
        pending = table == BRONZE if pending is None else pending
        try:
            named = rows.withColumns(
                {
                    "p_day": fn.col("day").cast("string"),
                    "p_pending": fn.lit(pending) if isinstance(pending, bool) else pending,
                }
            )
            if streams is None:
                streams = [row[0] for row in rows.select("queue").distinct().collect()]
            known = frozenset(streams)
            if table in STORED:
                named = public_rows(split_lanes(named, known))
            if parts is not None:
                named = named.coalesce(parts)
            if len(known) > 1:
                named = named.sortWithinPartitions("p_day", "p_pending", "queue")
            writer = named.write.option("compression", "zstd").option(*_NO_MARKER)
            writer = writer.partitionBy("p_day", "p_pending")
            writer.mode("append").parquet(str(stage))
            return [self._take(path, table) for path in sorted(stage.rglob("*.parquet"))]
        except Exception as error:
            raise unwrapped(error, self.lake.root) from error
        finally:
            shutil.rmtree(stage, ignore_errors=True)

    def register(self, version: Version | None = None, text: str | None = None) -> Mapping[str, DataFrame]:
        """Registers tables of one version as views, for SQL, with instants as timestamps.

        Args:
            version: The version; by default the newest.
            text: The query; only the tables that it names are registered. Without it all stored tables are.
        """
        version = version or self.lake.head()
        views = [] if text is None else [name for name in VIEWS if name in _words(text)]
        sources = [source for name in views for source in VIEWS[name].sources]
        named = dict.fromkeys([*(TABLES if text is None else _named(text)), *sources])
        found = {
            table: public_rows(self.read(table, version))
            if table in DERIVED
            else self._stored(table, version.of(table))
            for table in named
        }
        for table, rows in found.items():
            rows.createOrReplaceTempView(table)
        for name in views:
            found[name] = self.spark.sql(VIEWS[name].text(SPARK, load_objectives(self.lake.root)))
            found[name].createOrReplaceTempView(name)
        return found

    def _take(self, path: Path, table: str) -> File:
        day, pending = (folder.name.partition("=")[2] for folder in (path.parents[1], path.parents[0]))
        return self.lake.take(path, table, day, pending=pending == "true")


def public_rows(rows: DataFrame) -> DataFrame:
    """Returns rows with instants as timestamps, under their names in files and queries."""
    return rows.select(
        *(
            fn.timestamp_millis(name).alias(public_name(name)) if name in INSTANTS else fn.col(name)
            for name in rows.columns
        )
    )


def streams_of(version: Version) -> frozenset[str]:
    """Returns the streams of a version that were built."""
    return frozenset[str]().union(*(version.lake.streams(file) for file in version.of(BUILDS)))


def _text(columns: Mapping[str, str]) -> str:
    return ", ".join(map(" ".join, columns.items()))


def _named(text: str) -> list[str]:
    """The tables whose names occur in a query, as tables or otherwise."""
    words = _words(text)
    return [table for table in (*TABLES, *DERIVED) if table in words]


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def _first_day(least: DataFrame, otherwise: str) -> str:
    """The day of the only value of a result, a time in ms by some client's clock; unless null or later."""
    found = least.collect()[0][0]
    return otherwise if found is None else min(otherwise, day_of(max(0, found - SKEW_MS)))
