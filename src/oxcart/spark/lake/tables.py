"""The lake's tables in Spark: read by manifest, and written to files that a later version publishes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pyspark.sql import functions as fn

from oxcart.model.errors import ValidationError
from oxcart.model.target import base_of
from oxcart.spark.errors import unwrapped
from oxcart.spark.lake.bronze import BRONZE
from oxcart.spark.lake.versions import File, Lake, Version
from oxcart.spark.read.entries import SCHEMA
from oxcart.spark.transforms import build
from oxcart.spark.transforms.flows import PATH_SCHEMA, critical_paths
from oxcart.spark.transforms.lanes import join_lanes, split_lanes
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
#: The columns of tables, as far as they are known.
_SCHEMAS = {BRONZE: SCHEMA, OPEN: SCHEMA}


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
        made = make(*(join_lanes(self.read(source, version)) for source in sources))
        found = split_lanes(made, version.queues)
        if days is not None:
            found = found.filter(fn.col("day").cast("string").isin(list(days)))
        return found if queues is None else found.filter(fn.col("queue").isin(list(queues)))

    def load(self, table: str, files: Iterable[File]) -> DataFrame:
        """Returns the rows of some files of a table."""
        files = list(files)
        if not files:
            return self.spark.createDataFrame([], self._schema(table))
        reader = self.spark.read.schema(self._schema(table)).option("recursiveFileLookup", "true")
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

    def register(self, version: Version | None = None, text: str = "") -> Mapping[str, DataFrame]:
        """Registers every table of one version as a view, for SQL.

        Args:
            version: The version; by default the newest.
            text: The query; derived tables are registered if it names them.
        """
        version = version or self.lake.head()
        named = [table for table in DERIVED if table in text.lower()]
        found = {table: self.read(table, version) for table in (*TABLES, *named)}
        for table in (BRONZE, OPEN):  # stored by the names of streams
            found[table] = split_lanes(found[table], version.queues)
        for table, rows in found.items():
            rows.createOrReplaceTempView(table)
        return found

    def _take(self, path: Path, table: str) -> File:
        folders = (path.parents[2], path.parents[1], path.parents[0])
        day, queue, pending = (unquote(folder.name.partition("=")[2]) for folder in folders)
        return self.lake.take(path, table, day, queue, pending=pending == "true")

    def _schema(self, table: str) -> str:
        if table not in _SCHEMAS:
            # The plans of the transforms have the columns; nothing is computed.
            nothing = self.spark.createDataFrame([], SCHEMA)
            for name, rows in build.tables(nothing, persist=False).items():
                fields = (rows if name in (*_SCHEMAS, TALLIES) else split_lanes(rows, ())).schema.fields
                _SCHEMAS[name] = ", ".join(f"`{one.name}` {one.dataType.simpleString()}" for one in fields)
        return _SCHEMAS[table]
