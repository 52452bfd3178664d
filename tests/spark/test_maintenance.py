"""Upkeep as ordinary jobs: added, run by a worker, with results and failures like any others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from oxcart import Worker
from oxcart.model.errors import JobFailed
from oxcart.spark import maintenance
from oxcart.spark.lake.tables import Tables
from oxcart.spark.lake.versions import Change, Lake
from tests.conftest import MakeQueue
from tests.history.lakes import write
from tests.spark.conftest import long
from tests.spark.story import MIDNIGHT, Story

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    """A lake whose bronze came in two batches."""
    made = Tables(spark, Lake(tmp_path / "lake"))
    for job, hour in (("early", 9), ("late", 10)):
        story = Story(at_ms=MIDNIGHT + hour * 3_600_000)
        story.run(job, ("completed", {}))
        made.lake.publish(Change("ingest", add=made.write(story.bronze(spark), "events")))
    return made.lake


@long
async def test_every_maintenance_task_runs_as_a_job(
    make_queue: MakeQueue, lake: Lake, tmp_path: Path
) -> None:
    queue = maintenance.register(make_queue("upkeep"))
    page = tmp_path / "report.html"
    where = str(lake.root)
    before = lake.head()
    async with Worker(queue, concurrency=1).running():
        compacted = await queue.add("compact", {"lake": where})
        assert str(await compacted.result(timeout=500)).endswith("files fewer")
        rebuilt = await queue.add("rebuild", {"lake": where, "first": "2026-11-02", "master": "local[1]"})
        expired = await queue.add("expire", {"lake": where, "older_than": "0s"})
        reported = await queue.add("report", {"lake": where, "html": str(page), "master": "local[1]"})
        assert await rebuilt.result(timeout=500) == "built: 2026-11-02"
        assert "files deleted" in str(await expired.result(timeout=500))
        assert await reported.result(timeout=500) == f"written: {page}"
    after = lake.head()
    assert (len(before.of("events")), len(after.of("events"))) == (2, 1)
    assert [sum(file.rows for file in one.of("events")) for one in (before, after)] == [
        sum(file.rows for file in before.of("events"))
    ] * 2
    assert f"Version {after.number} of the lake" in page.read_text()


async def test_expiry_drops_old_days(make_queue: MakeQueue, tmp_path: Path) -> None:
    today = datetime.now(UTC).date()
    days = [today - timedelta(days=back) for back in (9, 5, 0)]
    lake = Lake(tmp_path / "lake")
    made = [
        write(lake, table, [{"day": day, "job_id": "1"}]) for day in days for table in ("jobs", "attempts")
    ]
    lake.publish(Change("build", add=made))
    queue = maintenance.register(make_queue("upkeep"))
    async with Worker(queue).running():
        payload = {"lake": str(lake.root), "older_than": "0s", "retain": ["7d", "jobs=3d"]}
        done = await queue.add("expire", payload)
        assert await done.result(timeout=100) == "3 files deleted"
        wrong = await queue.add("expire", {"lake": str(lake.root), "max_bytes": "much"})
        with pytest.raises(JobFailed, match="max-bytes must be a size"):
            await wrong.result(timeout=100)
    assert lake.head().days("jobs") == [str(today)]
    assert lake.head().days("attempts") == [str(day) for day in days[1:]]


async def test_bad_arguments_fail_for_good(make_queue: MakeQueue, tmp_path: Path) -> None:
    queue = maintenance.register(make_queue("upkeep"))
    async with Worker(queue).running():
        job = await queue.add("rebuild", {"lake": str(tmp_path), "first": "yesterday"})
        with pytest.raises(JobFailed, match="--from must be a day like 2026-11-02, got 'yesterday'"):
            await job.result(timeout=100)
        failed = await queue.jobs.get(job.id)
    assert failed is not None
    assert failed.attempts_made == 1


def test_the_ready_made_queue_has_them() -> None:
    assert maintenance.queue.name == "maintenance"
    assert set(maintenance.queue._core.handlers.names) == {
        "compact",
        "expire",
        "rebuild",
        "report",
    }
