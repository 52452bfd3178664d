"""The pipeline of the week in a process of its own: ``python -m tests.spark.week.driver JSON``.

It runs until a file appears, then reads the rest and ends. It appends a line per build to a journal: when the
build began, its seconds, and the rows and files that it read.
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

from oxcart.spark.options import QueueSelection, ServerAddress
from oxcart.spark.read.spool import Spool
from oxcart.spark.read.tailer import Tailer
from oxcart.spark.session import QUICK_SETTINGS, open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from oxcart.spark.lake.versions import File, Lake

#: The key with the time of the week, in ms.
NOW = "week:now"


def main(given: dict[str, Any]) -> None:
    """Runs the pipeline."""
    from oxcart.spark.lake.tables import Tables
    from oxcart.spark.paced import Stop
    from oxcart.spark.pipeline import Pipeline, Plan

    store = redis.Redis.from_url(given["url"], decode_responses=True)
    lake, stop = Path(given["lake"]), Path(given["stop"])

    class Counted(Tables):
        """Tables that count the rows and files that a build reads."""

        def __init__(self, spark: SparkSession, lake: Lake) -> None:
            super().__init__(spark, lake)
            self.clear()

        def clear(self) -> None:
            self.new = self.rows = self.files = 0

        def load(
            self, table: str, files: Iterable[File], *, queues: Iterable[str] | None = None
        ) -> DataFrame:
            files = list(files)
            self.files += len(files)
            self.rows += sum(file.rows for file in files)
            self.new += sum(file.rows for file in files) if table == "events" else 0
            return super().load(table, files, queues=queues)

    class Week(Pipeline):
        """A pipeline whose clock is that of the week."""

        def tailer(self, spool: Path) -> Tailer:
            plan = self.plan
            return Tailer(
                plan.address,
                plan.selection,
                Spool(spool),
                name=plan.name,
                keep=plan.keep,
                begin=self.offsets(),
                clock=lambda: int(str(store.get(NOW) or 0)),
            )

        def _build(self, stop: Stop) -> None:
            counted, began, head = self.builder._tables, time.time(), self.lake.head()
            assert isinstance(counted, Counted)
            counted.clear()
            super()._build(stop)
            note(
                began=began,
                seconds=time.time() - began,
                new=counted.new,
                rows=counted.rows,
                files=counted.files,
                versions=self.lake.head().number - head.number,
            )

    def note(**facts: Any) -> None:
        with Path(given["journal"]).open("a") as journal:
            journal.write(json.dumps({"pid": os.getpid(), **facts}) + "\n")

    settings = QUICK_SETTINGS if given["quick"] else {}
    spark = open_session(given["master"], settings={**settings, **given.get("settings", {})})
    plan = Plan(
        lake,
        ServerAddress(url=given["url"]),
        QueueSelection(pattern="q*"),
        samples=False,
        spool=lake / "_spool" / "main",
        keep=given["keep"],
    )
    pipeline = Week(spark, plan)
    pipeline.builder._tables = Counted(spark, pipeline.lake)
    ended: Callable[[], bool] = stop.exists
    pipeline.run(given["every"], until=ended)
    pipeline.once()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
