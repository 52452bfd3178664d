"""The pipeline of the week in a process of its own: ``python -m tests.spark.week.driver JSON``.

It runs until a file appears, then reads the rest, exports what Spark alone computes, and ends. It appends a
line per build to a journal: when the build began, its seconds, and the rows and files that it read.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
from pyarrow import parquet

from oxcart.spark.lake.tables import Tables
from oxcart.spark.options import QueueSelection, ServerAddress
from oxcart.spark.paced import Stop
from oxcart.spark.pipeline import Pipeline, Plan
from oxcart.spark.read.spool import Spool
from oxcart.spark.read.tailer import Tailer
from oxcart.spark.session import QUICK_SETTINGS, open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from oxcart.spark.lake.versions import File, Lake

#: The key with the time of the week, in ms.
NOW = "week:now"
#: Tables that Spark alone computes: they are exported when the week has ended.
COMPUTED = ("critical_paths", "schedules")


class Counted(Tables):
    """Tables that count the rows and files that a build reads."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        super().__init__(spark, lake)
        self.clear()

    def clear(self) -> None:
        self.new = self.rows = self.files = 0

    def load(self, table: str, files: Iterable[File], **which: Iterable[str] | None) -> DataFrame:
        files = list(files)
        self.files += len(files)
        self.rows += sum(file.rows for file in files)
        self.new += sum(file.rows for file in files) if table == "events" else 0
        return super().load(table, files, **which)


class WeekPipeline(Pipeline):
    """A pipeline whose clock is that of the week, with a journal of its builds.

    Args:
        spark: The session.
        lake: The lake's folder.
        url: The server.
        keep: Events that a queue keeps.
        journal: The file of the journal.
    """

    def __init__(self, spark: SparkSession, lake: Path, url: str, keep: int, journal: Path) -> None:
        plan = Plan(
            lake,
            ServerAddress(url=url),
            QueueSelection(pattern="q*"),
            samples=False,  # the tailer samples
            spool=lake / "_spool" / "main",
            keep=keep,
        )
        super().__init__(spark, plan)
        self._store: Any = redis.Redis.from_url(url, decode_responses=True)
        self._journal = journal
        self._counted = self.builder._tables = Counted(spark, self.lake)

    def tailer(self, spool: Path) -> Tailer:
        plan = self.plan
        return Tailer(
            plan.address,
            plan.selection,
            Spool(spool),
            name=plan.name,
            keep=plan.keep,
            begin=self.offsets(),
            clock=lambda: int(self._store.get(NOW) or 0),
        )

    def _build(self, stop: Stop) -> None:
        began, head = time.time(), self.lake.head()
        self._counted.clear()
        super()._build(stop)
        note = {
            "pid": os.getpid(),
            "began": began,
            "seconds": time.time() - began,
            "new": self._counted.new,
            "rows": self._counted.rows,
            "files": self._counted.files,
            "versions": self.lake.head().number - head.number,
        }
        with self._journal.open("a") as journal:
            journal.write(json.dumps(note) + "\n")

    def export(self, folder: Path) -> None:
        """Writes the tables that Spark computes for a query as Parquet files."""
        folder.mkdir(exist_ok=True)
        for table in COMPUTED:
            parquet.write_table(self.query(f"SELECT * FROM {table}").toArrow(), folder / f"{table}.parquet")


def main(given: dict[str, Any]) -> None:
    """Runs the pipeline."""
    settings = QUICK_SETTINGS if given["quick"] else {}
    spark = open_session(given["master"], settings={**settings, **given.get("settings", {})})
    pipeline = WeekPipeline(spark, Path(given["lake"]), given["url"], given["keep"], Path(given["journal"]))
    ended: Callable[[], bool] = Path(given["stop"]).exists
    pipeline.run(given["every"], until=ended)
    pipeline.once()
    pipeline.export(Path(given["exported"]))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
