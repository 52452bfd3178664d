"""Spark applications that workers of the tests run."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oxcart import PermanentError, Queue
from oxcart.spark.work.job import SparkJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Little memory, no compilation: a session opens faster.
CONF = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
}

apps = Queue("apps", attempts=2, backoff={"type": "fixed", "delay": 50})


@apps.job(run="spark", master="local[2]", conf=CONF)
def count(spark: SparkSession, job: SparkJob, rows: int, to: str) -> dict[str, Any]:
    """Writes rows with a shuffle; prints, logs, and returns how many."""
    print("counting", rows)
    logging.getLogger("etl").warning("a warning of %s", job.id)
    frame = spark.range(rows).selectExpr("id % 10 AS k", "id").groupBy("k").count()
    frame.write.parquet(job.output(to))
    return {"rows": spark.read.parquet(str(job.outputs[0].staging)).count(), "pid": os.getpid()}


@apps.job(run="spark", master="local[2]", conf=CONF)
def endless(spark: SparkSession, job: SparkJob, note: str, to: str, limited: bool = False) -> None:
    """Runs a Spark job that does not end, in Python processes of Spark."""

    def limit() -> None:
        while not Path(note).exists():
            time.sleep(0.01)
        job.limit_to(0.5)

    if limited:
        threading.Thread(target=limit, daemon=True).start()

    def sleep(batches: Any) -> Any:
        for batch in batches:
            Path(note).write_text(f"{os.getpid()} {os.getppid()}")
            time.sleep(600)
            yield batch

    frame = spark.range(4, numPartitions=2).mapInArrow(sleep, "id bigint")
    frame.write.parquet(job.output(to))


@apps.job(run="spark", master="local[1]", conf=CONF)
def reporting(spark: SparkSession, job: SparkJob, to: str, progress: Any, message: str | None) -> None:
    """Reports its own progress, and writes rows."""
    job.update_progress(progress, message)
    spark.range(5).write.parquet(job.output(to))


@apps.job(run="spark", master="local[2]", conf=CONF)
def half(spark: SparkSession, job: SparkJob, to: str, how: str) -> int:
    """Fails in the first attempt after it has written its output."""
    spark.range(10).write.parquet(job.output(to))
    if job.fencing == 1:
        match how:
            case "raise":
                raise ConnectionError("the network")
            case "driver":
                os.kill(os.getpid(), signal.SIGKILL)
            case "jvm":
                spark.sparkContext._jvm.java.lang.Runtime.getRuntime().halt(1)  # type: ignore[union-attr]
                spark.range(1).count()
    return job.fencing


@apps.job(run="spark", master="local[2]", conf=CONF)
def broken(spark: SparkSession, how: str) -> None:
    """Fails in a way of Spark's own."""

    def fail(batches: Any) -> Any:
        raise PermanentError("a bad row")

    if how == "analysis":
        spark.range(1).select("no_such_column").collect()
    elif how == "task":
        spark.range(1).mapInArrow(fail, "id bigint").collect()
