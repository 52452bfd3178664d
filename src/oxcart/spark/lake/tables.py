"""The lake's tables in Spark: read by Delta's list of files, and written to files that are published later.

Files have instants as timestamps (``ended_at``) and the name of a stream as queue and lane. Transforms have
instants in ms (``ended_ms``), and bronze and ``open`` have the name of the stream in ``queue``. This module
converts between the two; `Tables.register` shows the tables to SQL as files have them.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from oxcart.model.errors import ValidationError
from oxcart.model.target import base_of
from oxcart.spark.errors import unwrapped
from oxcart.spark.lake.bronze import BRONZE
from oxcart.spark.lake.columns import BUILDS, INSTANTS, OPEN, STORED, VIEWED, public, public_name
from oxcart.spark.lake.source import SparkSource
from oxcart.spark.lake.versions import File, Lake, Version
from oxcart.spark.read.entries import COLUMNS, SCHEMA
from oxcart.spark.transforms import build
from oxcart.spark.transforms.failures import CLUSTER_SCHEMA
from oxcart.spark.transforms.lanes import join_lanes, split_lanes
from oxcart.spark.transforms.metrics import TALLY_SCHEMA
from oxcart.spark.views.catalogue import VIEWS, View
from oxcart.spark.views.dialect import SPARK, days_in
from oxcart.spark.views.objectives import load_objectives
from oxcart.spark.views.parts import Part

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

#: Sums of a queue's last day from which its next span goes on; for builds alone.
TALLIES = "tallies"
TABLES = (BRONZE, OPEN, *build.SILVER, *build.GOLD)
#: The columns of transforms. Spark would take seconds to read them from the plans of all transforms.
SCHEMAS: Mapping[str, str] = {
    **{table: ", ".join(map(" ".join, columns.items())) for table, columns in STORED.items()},
    BRONZE: SCHEMA,
    OPEN: SCHEMA,
    TALLIES: f"day date, queue string, {TALLY_SCHEMA}, {CLUSTER_SCHEMA}",
}
#: Tables that transforms have by the names of streams.
_BY_STREAM = (BRONZE, OPEN)
#: Spark's default is a type that Delta does not have.
_TIMESTAMPS = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
#: Nobody reads the file ``_SUCCESS``. Hadoop starts a process (``chmod``) for every file and folder.
_NO_MARKER = ("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")


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
        streams: Iterable[str] | None = None,
    ) -> DataFrame:
        """Returns a table of a version, by default the newest, with instants in ms.

        Args:
            table: The table, stored or computed.
            version: The version.
            days: Only these days.
            queues: Only these queues, with all their lanes, or streams.
            streams: Only these streams of a stored table: a queue without its lanes, or a lane.

        Raises:
            ValidationError: There is no such table.
        """
        version = version or self.lake.head()
        if table in VIEWS:
            found = self.register(version, table, days=days)[table].select(
                *(
                    fn.unix_millis(public_name(name)).alias(name) if name in INSTANTS else fn.col(name)
                    for name in VIEWED[table]
                )
            )
            return found if queues is None else found.filter(fn.col("queue").isin(list(queues)))
        if table not in TABLES:
            raise ValidationError("table", f"one of {', '.join((*TABLES, *VIEWS))}", table)
        return self.load(table, version.of(table, days=days), queues=queues, streams=streams)

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
        self.spark.conf.set(*_TIMESTAMPS)
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

    def register(
        self, version: Version | None = None, text: str | None = None, *, days: Iterable[str] | None = None
    ) -> Mapping[str, DataFrame]:
        """Registers tables of one version as views, for SQL, with instants as timestamps.

        Args:
            version: The version; by default the newest.
            text: The query; only the tables that it names are registered. Without it all stored tables are.
            days: Only rows of these days. A flow or a schedule crosses days: other days that its rows need
                are read too.
        """
        version = version or self.lake.head()
        wanted = None if days is None else sorted(days)
        views = [] if text is None else [name for name in VIEWS if name in _words(text)]
        sources = [source for name in views if not VIEWS[name].parts for source in VIEWS[name].sources]
        named = [table for table in TABLES if text is None or table in _words(text)]
        found = {
            table: self._stored(table, version.of(table, days=wanted))
            for table in dict.fromkeys([*named, *sources])
        }
        # Parts ask about further days of the same tables: what they register is replaced afterwards.
        parts = {name: self._parts(VIEWS[name], version, wanted) for name in views}
        for table, rows in found.items():
            rows.createOrReplaceTempView(table)
        for name in views:
            for part, rows in parts[name].items():
                rows.createOrReplaceTempView(part)
            made = self.spark.sql(VIEWS[name].text(SPARK, load_objectives(self.lake.root)))
            if parts[name] and wanted is not None:
                made = made.filter(days_in(wanted))
            found[name] = made
            made.createOrReplaceTempView(name)
        return found

    def _parts(self, view: View, version: Version, days: Sequence[str] | None) -> dict[str, DataFrame]:
        """The parts of a view, by name."""
        if not view.parts:
            return {}
        needed = days
        if days is not None and view.reach is not None:

            def ask(text: str, read: Sequence[str]) -> list[Row]:
                self._show(view, version, read)
                return self.spark.sql(text).collect()

            known = sorted({file.day for table in view.sources for file in version.of(table)})
            needed = view.reach(SPARK, ask, known, days)
        self._show(view, version, needed)
        made: dict[str, DataFrame] = {}
        for part in view.parts:
            made[part.name] = rows = self._part(part)
            rows.createOrReplaceTempView(part.name)
        return made

    def _show(self, view: View, version: Version, days: Sequence[str] | None) -> None:
        for table in view.sources:
            self._stored(table, version.of(table, days=days)).createOrReplaceTempView(table)

    def _part(self, part: Part) -> DataFrame:
        rows = self.spark.sql(part.text(SPARK))
        added = part.adds
        if added is None:
            # Every level of a tree is a Spark job of its own, which would compute the part again.
            return rows.localCheckpoint(eager=False)
        name, _, kind = added.columns.rpartition(", ")[2].partition(" ")
        compute = fn.udf(lambda *given: added.function(*given), kind)  # Spark does not read our hints
        return rows.withColumn(name, compute(*rows.columns))

    def source(self, version: Version, days: Sequence[str]) -> SparkSource:
        """Returns a version, limited to some days, as reports ask it (`oxcart.history.report`)."""
        return SparkSource(self, version, days)

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


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))
