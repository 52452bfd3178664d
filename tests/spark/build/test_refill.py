"""Gaps are filled from the records of jobs, once, as far as records exist, and the gap's row counts them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import redis

pytest.importorskip("pyspark")

from oxcart import PermanentError, Queue, RunningJob, TemporaryError, Worker
from oxcart.spark.lake.upkeep import compact
from oxcart.spark.options import QueueSelection, ServerAddress
from oxcart.spark.pipeline import Pipeline, Plan
from oxcart.spark.read.attachment import attach

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DONE, BROKEN, GONE = 12, 3, 5


async def work(url: str) -> None:
    """Jobs that complete, fail or are removed when they end, and a job that still waits."""
    queue = Queue("mail", url=url)

    @queue.job
    async def welcome(to: int) -> int:
        return to

    @queue.job
    async def broken() -> None:
        raise PermanentError("no such user")

    async with queue, Worker(queue, concurrency=2).running():
        jobs = [await queue.add("welcome", {"to": to}) for to in range(DONE)]
        jobs += [await queue.add("broken", {}) for _ in range(BROKEN)]
        jobs += [await queue.add("welcome", {"to": 1}, remove_on_complete=True) for _ in range(GONE)]
        await queue.add("welcome", {"to": 0}, delay="1h", correlation_id="user-7")
        await asyncio.gather(*(job.result(timeout=60) for job in jobs), return_exceptions=True)
        await (await queue.add("welcome", {"to": 99})).result(timeout=60)


def table(pipeline: Pipeline, name: str) -> list[dict[str, Any]]:
    return [row.asDict() for row in pipeline.tables.read(name).collect()]


@pytest.fixture
def pipeline(spark: SparkSession, url: str, tmp_path: Path) -> Pipeline:
    return Pipeline(
        spark, Plan(tmp_path / "lake", ServerAddress(url=url), QueueSelection(("mail",)), samples=False)
    )


@pytest.mark.usefixtures("one_day")
def test_lost_events_are_refilled_from_records_once(pipeline: Pipeline, url: str, store: redis.Redis) -> None:
    asyncio.run(work(url))
    # A claim was called before its job was added, so the record has the earlier start.
    (early,) = cast(list[str], store.zrange("bull:mail:completed", 0, 0))
    added = store.hget(f"bull:mail:{early}", "timestamp")
    store.hset(f"bull:mail:{early}", "processedOn", int(str(added)) - 50)
    entries: Any = store.xrange("bull:mail:events")
    last = max(place for place, (_, fields) in enumerate(entries) if fields["event"] == "added")
    # A job that ended in the millisecond of the entry behind the gap.
    (edge,) = cast(list[str], store.zrange("bull:mail:completed", 1, 1))
    store.hset(f"bull:mail:{edge}", "finishedOn", int(entries[last][0].partition("-")[0]))
    store.xtrim("bull:mail:events", maxlen=len(entries) - last, approximate=False)  # the last job's stay
    pipeline.once()
    (gap,) = table(pipeline, "gaps")
    # added, waiting, active and the end of each; of the delayed one added and delayed.
    actual = 4 * (DONE + BROKEN) + 2
    assert (gap["count"], gap["refilled"], gap["cause"]) == (last, actual, "before")
    jobs = table(pipeline, "jobs")
    states = sorted(job["state"] for job in jobs)
    assert states == ["completed"] * (DONE + 1) + ["delayed"] + ["failed"] * BROKEN
    assert {job["born"] for job in jobs} == {"added"}
    assert all(job["wait_ms"] is not None for job in jobs if job["state"] != "delayed")
    assert [job["reason"] for job in jobs if job["state"] == "failed"] == ["no such user"] * BROKEN
    assert {job["category"] for job in jobs if job["state"] == "failed"} == {"permanent"}
    assert [job["correlation_id"] for job in jobs if job["state"] == "delayed"] == ["user-7"]
    assert all(row["legal"] is not False for row in table(pipeline, "transitions"))
    read = [row for row in table(pipeline, "events") if row["stream"] == "events"]
    ordinals = [row["ordinal"] for row in read if row["kind"] in ("entry", "refill")]
    assert len(ordinals) == len(set(ordinals)), "every ordinal once"
    before = pipeline.lake.head().number
    again = Pipeline(pipeline.spark, pipeline.plan)
    assert again.once() == []
    assert again.lake.head().number == before, "a gap is filled once"
    the_next_gap_waits_for_the_entry_behind_it(pipeline, url, store)


def the_next_gap_waits_for_the_entry_behind_it(pipeline: Pipeline, url: str, store: redis.Redis) -> None:
    """In the same lake, because every build costs seconds."""
    whole = sorted(table(pipeline, "jobs"), key=lambda job: job["first_id"])
    queue_more(url)
    store.xtrim("bull:mail:events", maxlen=0, approximate=False)
    pipeline.once()
    (_, gap) = sorted(table(pipeline, "gaps"), key=lambda gap: gap["first_lost"])
    assert gap["refilled"] is None, "its end is not known yet"
    queue_more(url)
    pipeline.once()
    (_, gap) = sorted(table(pipeline, "gaps"), key=lambda gap: gap["first_lost"])
    assert (gap["count"], gap["refilled"]) == (2, 2)
    jobs = sorted(table(pipeline, "jobs"), key=lambda job: job["first_id"])
    assert [job for job in jobs if job["first_id"] in {one["first_id"] for one in whole}] == whole
    assert len(jobs) == len(whole) + 2
    head = pipeline.lake.head()
    assert list(head.marks["refill"].values()) == [2], "the mark forgets gaps that the table calls refilled"
    compact(pipeline.lake)
    assert Pipeline(pipeline.spark, pipeline.plan).once() == [], "compacted gaps are not filled again"


def queue_more(url: str) -> None:
    async def add() -> None:
        async with Queue("mail", url=url) as queue:
            await asyncio.sleep(0.005)
            await queue.add("welcome", {"to": 7})
            await asyncio.sleep(0.005)

    asyncio.run(add())


def add_later(url: str) -> None:
    """A job that no worker runs yet."""

    async def add() -> None:
        async with Queue("mail", url=url) as queue:
            await asyncio.sleep(0.005)
            await queue.add("stumbles", {}, delay="1h")
            await asyncio.sleep(0.005)

    asyncio.run(add())


async def stumble(url: str, jobs: int) -> None:
    """Jobs that fail once and then complete."""
    queue = Queue("mail", url=url)

    @queue.job(backoff="1ms", attempts=3)
    async def stumbles(job: RunningJob) -> int:
        if job.attempt == 1:
            raise TemporaryError("not yet", code="busy")
        return 1

    async with queue, Worker(queue, concurrency=2, name="ours").running():
        made = [await queue.add("stumbles", {}) for _ in range(jobs)]
        await asyncio.gather(*(job.result(timeout=60) for job in made))


@pytest.mark.usefixtures("one_day")
def test_attempts_whose_events_were_trimmed_come_from_their_records(
    pipeline: Pipeline, url: str, store: redis.Redis
) -> None:
    add_later(url)
    assert attach(ServerAddress(url=url), "mail", "main") is not None
    pipeline.once()
    asyncio.run(stumble(url, 6))
    add_later(url)
    store.xtrim("bull:mail:events", maxlen=2, approximate=False)
    pipeline.once()
    (gap,) = table(pipeline, "gaps")
    mine = [row for row in table(pipeline, "attempts") if row["name"] == "stumbles"]
    assert sorted((row["attempt"], row["outcome"], row["told_by"]) for row in mine) == [
        *[(1, "retried", "record")] * 6,
        *[(2, "completed", "record")] * 6,
    ]
    assert {row["worker"] for row in mine} == {"ours"}
    assert {(row["category"], row["code"]) for row in mine if row["attempt"] == 1} == {("temporary", "busy")}
    assert all(row["run_ms"] is not None for row in mine)
    jobs = [row for row in table(pipeline, "jobs") if row["attempts"]]
    assert [(row["state"], row["attempts"], row["retries"], row["born"]) for row in jobs] == [
        ("completed", 2, 1, "added")
    ] * 6
    assert gap["refilled"] == 6 * (1 + 2 + 2), "added, and the start and end of two attempts"
    assert all(row["legal"] is not False for row in table(pipeline, "transitions"))
