"""Programs of the chaos test: a worker of Spark applications, and a driver whose executors run jobs.

Run as ``python -m tests.spark.work.chaos worker`` or ``… driver``, with ``OXCART_URL``.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oxcart import Queue, SyncRunningJob, Worker
from oxcart.spark import SparkJob, run_jobs
from tests.spark.work.applications import CONF

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A job may be started as often as the test kills.
POLICY: dict[str, Any] = {"attempts": 100, "backoff": {"type": "fixed", "delay": 50}}
LEASE: dict[str, Any] = {"lock_duration": 4, "stalled_interval": 0.5, "max_stalled": 100}

apps = Queue("apps", **POLICY)
plain = Queue("plain", **POLICY)


def note(folder: str, name: str, text: str) -> None:
    """Appends a line to a file, in one write."""
    with open(Path(folder, name), "ab", buffering=0) as file:
        file.write(f"{text}\n".encode())


@apps.job(run="spark", master="local[1]", conf={**CONF, "spark.ui.enabled": False})
def recorded(spark: SparkSession, job: SparkJob, notes: str, to: str, seconds: float) -> int:
    """Notes its start and its processes, runs for a while in Spark's Python process, and writes."""
    note(notes, job.id, f"start {job.fencing}")

    def slow(batches: Any) -> Any:
        for batch in batches:
            note(notes, "processes", f"executor {os.getpid()}")
            time.sleep(seconds)
            yield batch

    note(notes, "processes", f"driver {os.getpid()}")
    spark.range(10, numPartitions=1).mapInArrow(slow, "id bigint").write.parquet(job.output(to))
    return job.fencing


def effect(job: SyncRunningJob, notes: str) -> int:
    """A job of the executors: notes its start."""
    note(notes, job.id, f"start {job.fencing}")
    time.sleep(0.02)
    return job.fencing


async def work() -> None:
    """Runs applications until it is killed."""
    await Worker(apps, concurrency=1, **LEASE).run()


def drive() -> None:
    """Drains the queue of plain jobs on executors."""
    from oxcart.spark.session import QUICK_SETTINGS, open_session

    settings = {**QUICK_SETTINGS, "spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
    spark = open_session(os.environ.get("OXCART_CHAOS_MASTER", "local[2,20]"), settings=settings)
    print("session", flush=True)
    print(run_jobs(spark, plain, effect, partitions=2, concurrency=4, **LEASE), flush=True)
    spark.stop()


if __name__ == "__main__":
    asyncio.run(work()) if sys.argv[1] == "worker" else drive()
