"""What a pipeline keeps: rows of jobs that the server removes, and days until their age, with their files."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from oxcart import Queue, Worker
from oxcart.spark.options import QueueSelection, ServerAddress

pytest.importorskip("pyspark")

from oxcart.spark.lake.retention import Retention
from oxcart.spark.pipeline import Pipeline, Plan
from oxcart.spark.read.attachment import attach

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


async def test_removed_jobs_stay_in_the_tables(
    spark: SparkSession, url: str, store: redis.Redis, tmp_path: Path
) -> None:
    address = ServerAddress(url=url)
    async with Queue("mail", url=url) as queue:
        jobs = await queue.add_many([("fine", {"n": n}, {"tags": {"n": str(n)}}) for n in range(40)])
        assert await asyncio.to_thread(attach, address, "mail", "main") is not None

        @queue.fallback
        async def handle() -> None:
            return None

        async with Worker(queue, concurrency=10).running():
            for job in jobs:
                await job.result(60)
            for job in jobs:
                store.zincrby("bull:mail:completed", -2 * 86_400_000, job.id)
            await (await queue.add("fine")).result(60)
        assert store.zcard("bull:mail:completed") == 1, "the retention of the queue removed the others"
        assert store.hget("bull:mail:meta", "ox:retention") == "86400:2592000"
    pipeline = Pipeline(spark, Plan(tmp_path / "lake", address, QueueSelection(("mail",)), samples=False))
    await asyncio.to_thread(pipeline.once)
    rows = pipeline.tables.read("jobs").collect()
    assert {row.job_id for row in rows} >= {job.id for job in jobs}
    assert {(row.name, row.state, row.attempts) for row in rows} == {("fine", "completed", 1)}


def test_a_pipeline_drops_days_and_deletes_their_files(
    spark: SparkSession, url: str, store: redis.Redis, tmp_path: Path
) -> None:
    today = int(time.time()) // 86_400
    events: tuple[dict[Any, Any], ...] = (
        {"event": "added", "name": "n"},
        {"event": "waiting"},
        {"event": "active"},
        {"event": "completed"},
    )
    for back in (20, 15, 0):  # the ids of a stream ascend
        for number, fields in enumerate(events):
            at = (today - back) * 86_400_000 + number
            store.xadd("bull:mail:events", {**fields, "jobId": f"job-{back}"}, id=f"{at}-0")
    plan = Plan(
        tmp_path / "lake",
        ServerAddress(url=url),
        QueueSelection(("mail",)),
        samples=False,
        retention=Retention.read(["7d", "events=17d"]),
    )
    pipeline = Pipeline(spark, plan)
    # Files of dropped days stay for a day: these go two days ago.
    pipeline.lake.clock = lambda: (today - 2) * 86_400_000
    pipeline.once()
    kept = {"events": [15, 0], "jobs": [0], "attempts": [0], "transitions": [0]}
    assert {table: ages(pipeline, table, today) for table in kept} == kept
    assert {table: on_disk(pipeline, table, today) for table in kept} == kept
    pipeline.plan = replace(plan, retention=Retention.read(["7d", "events=10d"]))
    pipeline.once()
    assert ages(pipeline, "events", today) == [15, 0], "the last look was less than ten minutes ago"
    long_ago = time.time() - 3600
    os.utime(pipeline.lake.root / "_expired", (long_ago, long_ago))
    pipeline.once()
    assert ages(pipeline, "events", today) == on_disk(pipeline, "events", today) == [0]
    assert {row.job_id for row in pipeline.tables.read("jobs").collect()} == {"job-0"}
    assert pipeline.builder.refresh() == [], "a day whose bronze was dropped is not built again"


def ages(pipeline: Pipeline, table: str, today: int) -> list[int]:
    """How many days ago the days of a table are."""
    return [today - _number(day) for day in pipeline.lake.head().days(table)]


def on_disk(pipeline: Pipeline, table: str, today: int) -> list[int]:
    """How many days ago the days are whose files exist."""
    folders = {path.parent.name for path in pipeline.lake.root.glob(f"{table}/day=*/*.parquet")}
    return sorted((today - _number(name.partition("=")[2]) for name in folders), reverse=True)


def _number(day: str) -> int:
    return (date.fromisoformat(day) - date(1970, 1, 1)).days


def test_a_pipeline_reads_on_if_an_old_folder_cannot_be_deleted(
    spark: SparkSession, url: str, store: redis.Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.xadd("bull:mail:events", {"event": "added", "name": "n", "jobId": "job-1"})
    plan = Plan(tmp_path / "lake", ServerAddress(url=url), QueueSelection(("mail",)), samples=False)
    stuck = plan.lake / "_plain" / ".v0.old"
    stuck.parent.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    stuck.symlink_to(tmp_path / "elsewhere")
    shown = plan.lake / "_plain" / "current"
    shown.symlink_to(stuck.name)
    pipeline = Pipeline(spark, plan)
    pipeline.lake.clock = lambda: int(time.time() * 1000) + 2 * 86_400_000
    pipeline.once()
    assert shown.resolve() != (tmp_path / "elsewhere").resolve()
    assert pipeline.tables.read("events").count() == 1
    assert f"{stuck} could not be deleted" in caplog.text
