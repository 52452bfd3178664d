"""A real standalone cluster that loses an executor in a batch gives the rows of local mode."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import redis

from oxcart.spark.options import QueueSelection, ServerAddress
from oxcart.spark.read.spool import Spool
from oxcart.spark.read.tailer import Tailer
from tests.servers import wait_until

pytest.importorskip("pyspark")

from oxcart.spark.lake.tables import TABLES, Tables
from oxcart.spark.lake.versions import Lake
from oxcart.spark.pipeline import Pipeline, Plan
from oxcart.spark.session import QUICK_SETTINGS
from tests.spark.standalone import Standalone
from tests.spark.sums import added_up

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
#: A short form here, the full size by ``make pipeline-cluster``.
JOBS = int(os.environ.get("OXCART_CLUSTER_JOBS", "2000"))
DAY_MS = 86_400_000
FIRST = 1_793_577_600_000  # 2026-11-02


def fill(store: redis.Redis, jobs: int) -> None:
    """Completed, failed, retried and open jobs; at full size they continue past midnight."""
    store.hset("bull:q:meta", "opts.maxLenEvents", str(100 * jobs))
    pipe, at = store.pipeline(transaction=False), FIRST + (DAY_MS // 2 if jobs > 10_000 else 0)

    def add(**fields: Any) -> None:
        nonlocal at
        at += max(1, DAY_MS // (6 * jobs))
        pipe.xadd("bull:q:events", cast(Any, fields), id=f"{at}-0")

    for number in range(jobs):
        job = str(number)
        add(event="added", jobId=job, name=f"n{number % 3}")
        add(event="waiting", jobId=job)
        if number % 7 == 0:
            continue
        add(event="active", jobId=job, prev="waiting")
        if number % 5 == 0:
            add(event="delayed", jobId=job, delay=str(at + 50))
            add(event="waiting", jobId=job, prev="delayed")
            add(event="active", jobId=job, prev="waiting")
        if number % 11 == 0:
            add(event="failed", jobId=job, failedReason=f"no {number}", prev="active")
        else:
            add(event="completed", jobId=job, returnvalue=job, prev="active")
        if number % 1000 == 0:
            pipe.execute()
    pipe.execute()


def rows(spark: SparkSession, lake: Path) -> dict[str, list[str]]:
    tables = Tables(spark, Lake(lake))
    return {
        name: sorted(
            json.dumps(row, default=str, sort_keys=True)
            for row in added_up(name, (row.asDict(True) for row in tables.read(name).collect()))
        )
        for name in TABLES
    }


def is_writing(lake: Path) -> bool:
    """Whether a file lies in a staging folder. These come and go."""
    with suppress(FileNotFoundError):
        return any(any(folder.iterdir()) for folder in (lake / "_staging").iterdir())
    return False


def lost_one(cluster: Standalone) -> bool:
    given = [cluster.log(f"worker-{number}") for number in range(2)]
    return any("exitStatus 137" in text or "code 137" in text for text in given)


@pytest.mark.timeout(3600)
def test_a_cluster_that_loses_an_executor_gives_the_rows_of_local_mode(
    spark: SparkSession, url: str, store: redis.Redis, tmp_path: Path
) -> None:
    fill(store, JOBS)
    near, far = tmp_path / "near", tmp_path / "far"
    Pipeline(spark, Plan(near, ServerAddress(url=url), QueueSelection(("q",)), samples=False)).once()
    log = tmp_path / "driver.log"
    with Standalone(tmp_path, workers=2) as cluster, log.open("wb") as output:
        given = {
            "lake": str(far),
            "url": url,
            "rows": max(4000, JOBS // 2),
            "master": cluster.url,
            "build": True,
            "settings": {
                "spark.driver.host": "127.0.0.1",
                "spark.executor.memory": "512m",
                # Five JVMs on few cores: executors compile at full size only, where it pays.
                "spark.executor.extraJavaOptions": QUICK_SETTINGS["spark.driver.extraJavaOptions"]
                if JOBS <= 10_000
                else "",
                "spark.sql.shuffle.partitions": "2",
            },
        }
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.driver", json.dumps(given)],
            cwd=ROOT,
            stdout=output,
            stderr=output,
        )
        try:
            wait_until(lambda: len(cluster.executors()) == 2, "both executors run", 300)
            # In the middle of a batch: its files are in the staging folder, not yet published.
            wait_until(lambda: is_writing(far), "a batch is being written", 300)
            victim = cluster.kill_executor()
            code = driver.wait(1200)
        finally:
            driver.kill()
            driver.wait()
        assert code == 0, log.read_text()[-3000:]
        wait_until(lambda: lost_one(cluster), "a worker says that its executor was killed")
        assert victim not in cluster.executors()
    assert rows(spark, far) == rows(spark, near)


@pytest.mark.timeout(900)
def test_a_cluster_reads_entries_that_only_the_spool_still_has(
    url: str, store: redis.Redis, tmp_path: Path
) -> None:
    """The spool lies in the lake, which executors share."""
    pytest.importorskip("duckdb")
    from oxcart.history.reader import LakeReader

    fill(store, 10)
    lake = tmp_path / "lake"
    address = ServerAddress(url=url)
    Tailer(address, QueueSelection(("q",)), Spool(lake / "_spool" / "main")).step()
    entries = int(cast(Any, store.xlen("bull:q:events")))
    store.xtrim("bull:q:events", maxlen=0)
    with Standalone(tmp_path, workers=1) as cluster:
        words = ["pipeline", "run", "--once", "--queue", "q", "--lake", str(lake), "--master", cluster.url]
        for setting in ("spark.driver.host=127.0.0.1", "spark.executor.memory=512m"):
            words += ["--conf", setting]
        done = subprocess.run(
            [sys.executable, "-m", "oxcart.cli", *words],
            cwd=ROOT,
            env={**os.environ, "OXCART_URL": url},
            capture_output=True,
            text=True,
            timeout=600,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    with LakeReader(lake) as reader:
        assert list(reader.sql("SELECT * FROM gaps")) == []
        kept = reader.sql("SELECT count(*) FROM events WHERE kind = 'entry' AND stream = 'events'")
        assert list(kept) == [(entries,)]
