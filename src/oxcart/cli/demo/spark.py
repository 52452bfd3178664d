"""The Spark process of a demo: builds tables from the events, and a report at the end.

Its standard input carries two words: ``begin`` (the queue exists) and ``end`` (all jobs have ended). Its
standard output carries one JSON object per line: ``say`` (progress), ``absent`` (why Spark cannot run),
``report``, or ``failed`` (a message for the user). When the input ends early, the demo is gone, and the
process kills itself and its JVM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import msgspec

if TYPE_CHECKING:
    from oxcart.spark.lake.versions import Lake
    from oxcart.spark.pipeline import Pipeline

T = TypeVar("T")

#: Seconds between two reads of the stream while jobs run.
PAUSE = 0.5
#: Seconds before a step is tried again whose Python process started too late: the machine has too much to do.
PATIENCE = 20.0


class Task(msgspec.Struct, frozen=True):
    """The arguments of the process.

    Attributes:
        url: URL of the demo's server.
        queue: Name of the demo's queue.
        lake: Folder of the tables.
        html: File of the report's page.
        scratch: Folder for Spark's temporary files.
    """

    url: str
    queue: str
    lake: str
    html: str
    scratch: str


class Orders:
    """Reads the words of the parent process from standard input."""

    def __init__(self, source: TextIO) -> None:
        self.begun = threading.Event()
        self.ended = threading.Event()
        self._source = source
        threading.Thread(target=self._read, name="oxcart-orders", daemon=True).start()

    def _read(self) -> None:
        for word in self._source:
            {"begin": self.begun, "end": self.ended}[word.strip()].set()
        os.killpg(0, signal.SIGKILL)  # the JVM is in the same process group


def send(**message: Any) -> None:
    """Writes a message to the parent process."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Reads events until the jobs have ended, then writes the report."""
    task = msgspec.json.decode(sys.argv[1], type=Task)
    orders = Orders(sys.stdin)

    from oxcart.model.errors import MissingExtra
    from oxcart.spark.session import QUICK_SETTINGS, JavaMissing, open_session

    settings = {
        **QUICK_SETTINGS,
        # There are few rows and many queries: compiling them would take Spark longer than interpreting them.
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
        send(absent=str(error))
        return
    from oxcart.spark.errors import WorkerLate
    from oxcart.spark.options import QueueSelection, ServerAddress
    from oxcart.spark.pipeline import Pipeline, Plan

    send(say="Spark is up and reads the events while they happen")
    # No samples: the only one would be taken long after the jobs, and would stretch the charts' time.
    plan = Plan(Path(task.lake), ServerAddress(url=task.url), QueueSelection((task.queue,)), samples=False)
    try:
        send(report=_report(Pipeline(spark, plan), orders, Path(task.html)))
    except WorkerLate as error:
        send(failed=str(error))
    spark.stop()


def patiently(step: Callable[[], T], pause: float = PATIENCE) -> T:
    """Returns the result of a step, which is tried once more if Spark's Python process was late.

    Raises:
        WorkerLate: It was late twice.
    """
    from oxcart.spark.errors import WorkerLate, of_task

    try:
        return step()
    except Exception as error:
        if not isinstance(of_task(error), WorkerLate):
            raise
    send(say=f"this machine is busy: trying again in {pause:g} s")
    time.sleep(pause)
    try:
        return step()
    except Exception as error:
        if isinstance(found := of_task(error), WorkerLate):
            raise found from error
        raise


def _report(pipeline: Pipeline, orders: Orders, html: Path) -> dict[str, Any]:
    from oxcart.history.report.collect import collect
    from oxcart.history.report.page import page
    from oxcart.history.report.text import lines
    from oxcart.spark.lake.bronze import BRONZE

    orders.begun.wait()
    while not orders.ended.wait(PAUSE):
        patiently(pipeline.ingest)
    patiently(pipeline.ingest)
    rows = sum(file.rows for file in pipeline.lake.head().of(BRONZE))
    send(say=f"bronze has all {rows:,} rows; building silver and gold")
    patiently(pipeline.builder.refresh)
    send(say="the tables are built; writing the report")
    made = patiently(lambda: collect(pipeline.lake, source=pipeline.tables.source))
    html.parent.mkdir(parents=True, exist_ok=True)
    html.write_text(page(made), encoding="utf-8")
    return {"html": str(html), "rows": rows, **_totals(pipeline.lake), "tables": lines(made)}


def _totals(lake: Lake) -> dict[str, int]:
    """Returns the totals of gold, which the demo compares with the counts of the queue."""
    from pyarrow import compute, parquet

    from oxcart.spark.lake.columns import ALL

    found = {"completed": 0, "failed": 0}
    for path in lake.paths(lake.head().of("queue_metrics")):
        rows = parquet.read_table(path, partitioning=None)
        days = rows.filter((compute.field("window") == "day") & (compute.field("name") == ALL))
        for column in found:
            found[column] += sum(days[column].to_pylist())
    return found


if __name__ == "__main__":
    main()
