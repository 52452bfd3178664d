"""A queue that removes ended jobs takes no row from the tables of an attached pipeline."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

from oxcart import Queue, Worker
from oxcart.spark.options import QueueSelection, ServerAddress

pytest.importorskip("pyspark")

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
