"""Spark applications whose tasks run on the executors of a standalone cluster."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oxcart import Queue
from oxcart.spark.work.job import SparkJob
from tests.spark.work.applications import CONF

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The variable with the cluster's url: the process of an attempt imports this module too.
MASTER = "OXCART_TEST_MASTER"
_CONF = {
    **CONF,
    "spark.executor.memory": "600m",
    "spark.cores.max": "2",
    "spark.driver.host": "127.0.0.1",
}

clustered = Queue("clustered", attempts=1)
_master = os.environ.get(MASTER, "local[2]")


@clustered.job(run="spark", master=_master, conf=_CONF)
def spread(spark: SparkSession, job: SparkJob, rows: int, to: str) -> dict[str, Any]:
    """Writes rows from tasks on both executors; returns the processes that ran them."""

    def placed(batches: Any) -> Any:
        import pyarrow as pa

        time.sleep(1)  # so that one executor does not take both tasks
        for batch in batches:
            yield pa.record_batch([batch["id"], [os.getpid()] * batch.num_rows], ["id", "pid"])

    frame = spark.range(rows, numPartitions=2).mapInArrow(placed, "id bigint, pid bigint")
    frame.write.parquet(job.output(to))
    written = spark.read.parquet(str(job.outputs[0].staging))
    return {"rows": written.count(), "pids": [row.pid for row in written.select("pid").distinct().collect()]}


@clustered.job(run="spark", master=_master, conf=_CONF)
def stuck(spark: SparkSession, job: SparkJob, notes: str, to: str) -> None:
    """Runs tasks on executors that do not end; each notes its process."""

    def sleep(batches: Any) -> Any:
        for batch in batches:
            Path(notes, str(os.getpid())).touch()
            time.sleep(600)
            yield batch

    frame = spark.range(4, numPartitions=2).mapInArrow(sleep, "id bigint")
    frame.write.parquet(job.output(to))
