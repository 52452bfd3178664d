"""Truth: what the tables say of jobs is what their handlers themselves recorded."""

from __future__ import annotations

import asyncio
import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from oxcart import PermanentError, Queue, Snooze, TemporaryError, Worker
from oxcart.spark.access import Access, Choice
from oxcart.spark.attach import attach
from tests.signals import eventually

pytest.importorskip("pyspark")

from oxcart.spark.pipeline import Pipeline, Plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOBS = int(os.environ.get("OXCART_TRUTH_JOBS", "300"))
#: Handler and server read clocks of their own, and work waits for its turn: within this, in ms.
TOLERANCE = 250

OUTCOMES = ("completed", "failed", "retried", "snoozed")


@dataclass
class Diary:
    """What handlers did, by job."""

    attempts: dict[str, list[tuple[str, float, float]]] = field(default_factory=dict)

    def note(self, job: str, outcome: str, began: float, ended: float) -> None:
        self.attempts.setdefault(job, []).append((outcome, began, ended))


def plan(number: int) -> list[str]:
    """What the attempts of a job will be, known before it runs."""
    rand = random.Random(number)
    steps = [rand.choice(("retried", "snoozed")) for _ in range(rand.choice((0, 0, 0, 1, 2)))]
    return [*steps, rand.choice(("completed", "completed", "failed"))]


@pytest.mark.timeout(900)
async def test_tables_equal_what_handlers_recorded(
    queue: Queue, spark: SparkSession, url: str, store: redis.Redis, tmp_path: Path
) -> None:
    diary = Diary()

    @queue.process
    async def run(job: Any) -> Any:
        step = plan(job.data)[len(diary.attempts.get(job.id, ()))]
        began = time.time() * 1000
        await asyncio.sleep(0.001 * (job.data % 5))
        diary.note(job.id, step, began, time.time() * 1000)
        if step == "failed":
            raise PermanentError(f"row {job.data} is bad", code="E_ROW")
        if step == "retried":
            raise TemporaryError(f"row {job.data} not yet", retry_after=0.01)
        if step == "snoozed":
            return Snooze(0.01)
        return job.data

    await queue.add("first")
    await asyncio.to_thread(attach, Access(url=url), "q", "main")
    await queue.remove((await queue.jobs("waiting"))[0].id)
    await queue.add_many(
        [("row", number, {"job_id": f"job-{number}", "attempts": 5}) for number in range(JOBS)]
    )
    async with Worker(queue, name="w1", concurrency=10).running():
        await eventually(
            lambda: int(store.zcard("bull:q:completed")) + int(store.zcard("bull:q:failed")) == JOBS,
            "all jobs have ended",
            120,
        )
    pipeline = Pipeline(spark, Plan(tmp_path / "lake", Access(url=url), Choice(("q",))))
    await asyncio.to_thread(pipeline.once)

    jobs = {row.job_id: row for row in pipeline.tables.read("jobs").filter("name = 'row'").collect()}
    assert set(jobs) == set(diary.attempts)
    for job, row in jobs.items():
        wanted = plan(int(job.removeprefix("job-")))
        assert row.state == {"completed": "completed", "failed": "failed"}[wanted[-1]]
        assert (row.attempts, row.retries, row.stalls) == (len(wanted), wanted.count("retried"), 0)
        assert (row.worker, row.category) == ("w1", "permanent" if wanted[-1] == "failed" else None)

    found: dict[str, list[Any]] = {}
    for row in pipeline.tables.read("attempts").orderBy("job_id", "attempt").collect():
        found.setdefault(row.job_id, []).append(row)
    assert set(found) == set(diary.attempts)
    for job, rows in found.items():
        noted = diary.attempts[job]
        assert [row.outcome for row in rows] == [outcome for outcome, _, _ in noted]
        for row, (outcome, began, ended) in zip(rows, noted, strict=True):
            assert abs(row.started_ms - began) < TOLERANCE
            assert abs(row.ended_ms - ended) < TOLERANCE
            assert row.told_by == "record"
            told = {"failed": ("permanent", "E_ROW"), "retried": ("temporary", "TemporaryError")}
            assert (row.category, row.code) == told.get(outcome, (None, None))

    day = pipeline.tables.read("queue_metrics").filter("window = 'day' and name = 'row'").collect()
    outcomes = [outcome for noted in diary.attempts.values() for outcome, _, _ in noted]
    assert sum(row.arrivals for row in day) == JOBS
    assert sum(row.completed for row in day) == outcomes.count("completed")
    assert sum(row.failed for row in day) == outcomes.count("failed")
    assert sum(row.retries for row in day) == outcomes.count("retried")
    assert sum(row.failures_permanent for row in day) == outcomes.count("failed")
    assert pipeline.tables.read("transitions").filter("not coalesce(legal, false)").collect() == []
    assert pipeline.tables.read("gaps").collect() == []
    clusters = {row.message for row in pipeline.tables.read("failures").collect()}
    assert clusters == {"row <n> is bad", "row <n> not yet"}
