"""Flows and schedules in the builder: by spans and days, in the report, and by SQL."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

from oxcart import Flow, Queue, RunningJob, Worker
from oxcart.spark.options import QueueSelection, ServerAddress
from oxcart.spark.read.attachment import attach
from tests.signals import eventually
from tests.spark.conftest import long
from tests.spark.story import DAY_MS, MIDNIGHT, Story

pytest.importorskip("pyspark")

from oxcart.history.report.collect import collect
from oxcart.history.report.page import page
from oxcart.history.report.text import lines
from oxcart.spark.build.builder import HOLD_MS, Builder
from oxcart.spark.lake.bronze import BRONZE
from oxcart.spark.lake.tables import Tables
from oxcart.spark.lake.versions import Change, Lake
from oxcart.spark.pipeline import Pipeline, Plan
from tests.spark.transforms.test_flows_and_schedules import TEN, all_rows, bronze_of, parent_of
from tests.spark.transforms.test_transforms import Rows, plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


VIEWS_OF_SILVER = ("critical_paths", "schedules")


def made(spark: SparkSession, root: Path, *batches: Rows) -> Tables:
    tables = Tables(spark, Lake(root))
    for batch in batches:
        files = tables.write(bronze_of(spark, batch), BRONZE, True)
        tables.lake.publish(Change("ingest", add=files))
        Builder(spark, tables.lake).refresh()
    return tables


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return made(spark, tmp_path_factory.mktemp("related") / "lake", all_rows())


@long
def test_spans_and_days_give_the_rows_of_one_build(
    spark: SparkSession, tables: Tables, tmp_path: Path
) -> None:
    rows = all_rows()
    middle = next(at for at, row in enumerate(rows) if row["at_ms"] > TEN + 800 + HOLD_MS)
    grown = made(spark, tmp_path / "lake", rows[:middle], rows[middle:])
    for name in ("flows", "firings", *VIEWS_OF_SILVER):
        assert plain(grown.read(name)) == plain(tables.read(name))


def test_a_queue_without_flows_or_schedules_has_no_such_files(spark: SparkSession, tmp_path: Path) -> None:
    story = Story()
    story.run("plain", ("completed", {"result": "1"}))
    tables = made(spark, tmp_path / "lake", story.rows)
    assert not tables.lake.head().of("flows")
    assert not tables.lake.head().of("firings")
    for name in VIEWS_OF_SILVER:
        assert tables.read(name).collect() == []


@long
def test_a_child_that_ends_the_next_day(spark: SparkSession, tmp_path: Path) -> None:
    """Its record is of the first day, and no row of the second has its parent."""
    story = Story("part", TEN)
    story.event("added", "late", name="part")
    story.event("waiting", "late")
    story.event("active", "late", prev="waiting")
    entry = story.event("waiting", "late", prev="active")
    story.record(entry, "retried", "late", parent=parent_of("sum"))
    first = len(story.rows)
    story.now = MIDNIGHT + DAY_MS
    story.event("active", "late", prev="waiting")
    story.event("completed", "late", prev="active")
    tables = made(spark, tmp_path / "lake", story.rows[:first], story.rows[first:])
    (row,) = tables.read("flows").collect()
    assert (str(row.day), row.parent_id, row.state) == ("2026-11-03", "sum", "completed")


def test_the_report_has_a_section_of_each(tables: Tables) -> None:
    report = collect(tables.lake)
    assert [row["flow_id"] for row in report.flows] == ["sum", "hasty"]
    assert report.flows[0]["path"].startswith("part ")
    assert {row["schedule"] for row in report.schedules} == {"beat", "hourly", "node"}
    shown = {title: rows for title, _, rows in lines(report)}
    assert len(shown["Flows"]) == 2
    assert ["beat", "cron", "–", "60,000", "5", "3", "2", "0"] in [row[:8] for row in shown["Schedules"]]
    text = page(report)
    assert "<table id='flows'>" in text
    assert "<table id='schedules'>" in text


def test_sql(tables: Tables) -> None:
    tables.register(text="schedules, critical_paths")
    (row,) = tables.spark.sql("SELECT sum(missed) AS n FROM schedules").collect()
    assert row.n == 4
    (row,) = tables.spark.sql("SELECT max(steps) AS n FROM critical_paths").collect()
    assert row.n == 3


@pytest.mark.usefixtures("one_day")
def test_from_a_real_flow_and_schedule_to_gold(
    spark: SparkSession, url: str, store: redis.Redis, tmp_path: Path
) -> None:
    asyncio.run(live(url, store))
    plan = Plan(tmp_path / "lake", ServerAddress(url=url), QueueSelection(pattern="*"), samples=False)
    pipeline = Pipeline(spark, plan)
    pipeline.once()
    paths = pipeline.query("SELECT flow_id, step, job_id, state FROM critical_paths ORDER BY step").collect()
    assert [tuple(row) for row in paths] == [("sum", 1, "slow", "completed"), ("sum", 2, "sum", "completed")]
    found = pipeline.query("SELECT schedule, every_ms, made, started, failed FROM schedules").collect()
    assert [tuple(row) for row in found] == [("beat", 50, 3, 3, 0)]
    (late,) = pipeline.query("SELECT min(late_ms) AS least FROM firings").collect()
    assert late.least >= 0, "nothing runs before it is due"


async def live(url: str, store: redis.Redis) -> None:
    """Two queues, a flow over them, and a schedule of three runs, by a worker of ours."""
    top, part = Queue("top", url=url), Queue("part", url=url)
    first_ended = asyncio.Event()

    @top.fallback
    async def add_up() -> int:
        return 2

    @part.fallback
    async def run(job: RunningJob) -> int:
        if job.id == "slow":
            await first_ended.wait()
        return 1

    async with top, part:
        flow = Flow(top, "sum", job_id="sum")
        await flow.after(Flow(part, "part", job_id="quick"), Flow(part, "part", job_id="slow")).add()
        await part.schedules.upsert("beat", every="50ms", limit=3)
        for queue in ("top", "part"):
            await asyncio.to_thread(attach, ServerAddress(url=url), queue, "main")
        async with Worker(top, part, concurrency=3).running():
            await part.jobs.handle("quick").result(timeout=60)
            first_ended.set()
            await eventually(
                lambda: int(store.zcard("bull:top:completed")) + int(store.zcard("bull:part:completed")) == 6,
                "all jobs have ended",
            )
