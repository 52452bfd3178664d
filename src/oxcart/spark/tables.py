"""The lake's tables in Spark: read by manifest, written so that nothing shows before it is published.

May touch: the lake's files, through Spark.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pyspark.sql import functions as fn

from oxcart.model.errors import ValidationError
from oxcart.model.target import base_of
from oxcart.spark.bronze import BRONZE
from oxcart.spark.entries import SCHEMA
from oxcart.spark.lake import File, Lake, Version
from oxcart.spark.lanes import apart, together
from oxcart.spark.transforms import build
from oxcart.spark.transforms.flows import PATH_SCHEMA, critical_paths
from oxcart.spark.transforms.schedules import SCHEDULE_SCHEMA, schedules
from oxcart.spark.trouble import spoken

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Silver and gold have their names from the transforms. `open`: the events of jobs that a day hands on.
OPEN = "open"
TABLES = (BRONZE, OPEN, *build.SILVER, *build.GOLD)
#: Gold over all queues and days, made when it is asked for: its columns, what of, and how.
DERIVED: Mapping[str, tuple[str, tuple[str, ...], Callable[..., DataFrame]]] = {
    "critical_paths": (PATH_SCHEMA, ("flows", "jobs", "attempts"), critical_paths),
    "schedules": (SCHEDULE_SCHEMA, ("firings",), schedules),
}
#: The columns of tables, of those that are known so far.
_SCHEMAS = {BRONZE: SCHEMA, OPEN: SCHEMA}


class Tables:
    """Tables of a lake.

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
        """A table as it is in a version, the newest unless given.

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
            names = {file.queue for file in version.files.values()}
            queues = {name for name in names if name in wanted or base_of(name) in wanted}
        return self.load(table, version.of(table, days=days, queues=queues))

    def _derive(
        self, table: str, version: Version, days: Iterable[str] | None, queues: Iterable[str] | None
    ) -> DataFrame:
        schema, sources, make = DERIVED[table]
        if not version.of(sources[0]):
            return apart(self.spark.createDataFrame([], schema))
        found = apart(make(*(together(self.read(source, version)) for source in sources)))
        if days is not None:
            found = found.filter(fn.col("day").cast("string").isin(list(days)))
        return found if queues is None else found.filter(fn.col("queue").isin(list(queues)))

    def load(self, table: str, files: Iterable[File]) -> DataFrame:
        """The rows of some files of a table."""
        files = list(files)
        if not files:
            return self.spark.createDataFrame([], self._schema(table))
        reader = self.spark.read.schema(self._schema(table)).option("recursiveFileLookup", "true")
        return reader.parquet(*self.lake.paths(files))

    def write(self, rows: DataFrame, table: str, pending: Column | bool = False) -> list[File]:
        """Writes rows into new files, by day and queue. They show when they are published.

        Args:
            rows: The rows.
            table: Their table.
            pending: Which of them go into files that the next build takes away.

        Raises:
            LakeError: The file system takes no more.
        """
        stage = self.lake.staging()
        named = rows.withColumns(
            {
                "p_day": fn.col("day").cast("string"),
                "p_queue": fn.col("queue"),
                "p_pending": fn.lit(pending) if isinstance(pending, bool) else pending,
            }
        )
        if table not in (BRONZE, OPEN):
            named = apart(named)
        try:
            writer = named.write.option("compression", "zstd").partitionBy("p_day", "p_queue", "p_pending")
            writer.mode("append").parquet(str(stage))
            return [self._take(path, table) for path in sorted(stage.rglob("*.parquet"))]
        except Exception as error:
            raise spoken(error, self.lake.root) from error
        finally:
            shutil.rmtree(stage, ignore_errors=True)

    def register(self, version: Version | None = None, text: str = "") -> Mapping[str, DataFrame]:
        """Makes every table a view of its name, all of one version; for SQL.

        Args:
            version: The version; the newest unless given.
            text: What will be asked; what is made when it is asked for is there if the text names it.
        """
        version = version or self.lake.head()
        asked = [table for table in DERIVED if table in text.lower()]
        found = {table: self.read(table, version) for table in (*TABLES, *asked)}
        for table in (BRONZE, OPEN):  # kept by the names of streams
            found[table] = apart(found[table])
        for table, rows in found.items():
            rows.createOrReplaceTempView(table)
        return found

    def _take(self, path: Path, table: str) -> File:
        folders = (path.parents[2], path.parents[1], path.parents[0])
        day, queue, pending = (unquote(folder.name.partition("=")[2]) for folder in folders)
        return self.lake.take(path, table, day, queue, pending=pending == "true")

    def _schema(self, table: str) -> str:
        if table not in _SCHEMAS:
            # The transforms say what columns their tables have; nothing is computed.
            nothing = self.spark.createDataFrame([], SCHEMA)
            for name, rows in build.tables(nothing, persist=False).items():
                fields = (rows if name in _SCHEMAS else apart(rows)).schema.fields
                _SCHEMAS[name] = ", ".join(f"`{one.name}` {one.dataType.simpleString()}" for one in fields)
        return _SCHEMAS[table]
