"""The Spark side of a demo: a process of its own that makes tables of what happens, and a report at the end.

It takes two words on its standard input, ``begin`` (the queue is there) and ``end`` (all jobs have ended),
and tells one JSON object per line on its standard output: ``say`` (how far it is), ``absent`` (what is
missing here to run Spark at all) and ``report``. When its input ends before that, whoever asked is gone, and
it goes too, with its JVM.

May touch: the demo's server, the folder and the page that it is told of, and a JVM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

if TYPE_CHECKING:
    from oxcart.spark.lake import Lake
    from oxcart.spark.pipeline import Pipeline

#: Seconds between looks at the stream while jobs run.
PAUSE = 0.5


class Task(msgspec.Struct, frozen=True):
    """What a report is made of.

    Attributes:
        url: The server.
        queue: The queue.
        lake: Where the tables go.
        html: Where the page goes.
        scratch: A folder for what Spark leaves lying about.
    """

    url: str
    queue: str
    lake: str
    html: str
    scratch: str


class Orders:
    """Words from whoever started this process, and its end."""

    def __init__(self, source: TextIO) -> None:
        self.begun = threading.Event()
        self.ended = threading.Event()
        self._source = source
        threading.Thread(target=self._read, name="oxcart-orders", daemon=True).start()

    def _read(self) -> None:
        for word in self._source:
            {"begin": self.begun, "end": self.ended}[word.strip()].set()
        os.killpg(0, signal.SIGKILL)  # the JVM is of the same group


def tell(**said: Any) -> None:
    """Tells whoever started this process."""
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Waits for the jobs to end, and reports."""
    task = msgspec.json.decode(sys.argv[1], type=Task)
    orders = Orders(sys.stdin)

    from oxcart.model.errors import MissingExtra
    from oxcart.spark.session import QUICK_SETTINGS, JavaMissing, open_session

    settings = {
        **QUICK_SETTINGS,
        # Few rows and many different queries: to compile them costs more than to interpret them.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.driver.extraJavaOptions": (
            f"{QUICK_SETTINGS['spark.driver.extraJavaOptions']} -XX:-UsePerfData "
            f"-Djava.io.tmpdir={task.scratch}"
        ),
        "spark.local.dir": task.scratch,
        "spark.sql.warehouse.dir": f"{task.scratch}/warehouse",
    }
    try:
        spark = open_session(app="oxcart demo", settings=settings)
    except (MissingExtra, JavaMissing) as error:
        tell(absent=str(error))
        return
    from oxcart.spark.access import Access, Choice
    from oxcart.spark.pipeline import Pipeline, Plan

    tell(say="Spark is up and reads the events while they happen")
    plan = Plan(Path(task.lake), Access(url=task.url), Choice((task.queue,)))
    tell(report=_report(Pipeline(spark, plan), orders, Path(task.html)))
    spark.stop()


def _report(pipeline: Pipeline, orders: Orders, html: Path) -> dict[str, Any]:
    from oxcart.spark.bronze import BRONZE
    from oxcart.spark.report import collect, lines, page

    orders.begun.wait()
    while not orders.ended.wait(PAUSE):
        pipeline.ingest()
    pipeline.ingest()
    rows = sum(file.rows for file in pipeline.lake.head().of(BRONZE))
    tell(say=f"bronze has all {rows:,} rows; silver and gold are built")
    pipeline.builder.refresh()
    tell(say="the tables are there; the report is written")
    made = collect(pipeline.tables)
    html.parent.mkdir(parents=True, exist_ok=True)
    html.write_text(page(made), encoding="utf-8")
    return {"html": str(html), "rows": rows, **_totals(pipeline.lake), "tables": lines(made)}


def _totals(lake: Lake) -> dict[str, int]:
    """What gold says of all days, to be compared with what the queue itself says."""
    from pyarrow import compute, parquet

    from oxcart.spark.transforms.metrics import ALL

    found = {"completed": 0, "failed": 0}
    for path in lake.paths(lake.head().of("queue_metrics")):
        rows = parquet.read_table(path, partitioning=None)
        days = rows.filter((compute.field("window") == "day") & (compute.field("name") == ALL))
        for column in found:
            found[column] += sum(days[column].to_pylist())
    return found


if __name__ == "__main__":
    main()
