"""From the server to gold: bronze exactly once, closed days, and faults."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from oxcart.spark.options import QueueSelection, ServerAddress

pytest.importorskip("pyspark")

from oxcart.spark.lake.versions import Change, Lake, Version
from oxcart.spark.pipeline import Pipeline, Plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Emit = Callable[..., list[str]]
DAY_MS = 86_400_000
FIRST = 1_793_577_600_000  # 2026-11-02


def life(job: str) -> list[dict[str, str]]:
    return [
        {"event": "added", "jobId": job, "name": "n"},
        {"event": "waiting", "jobId": job},
        {"event": "active", "jobId": job, "prev": "waiting"},
        {"event": "completed", "jobId": job, "returnvalue": "1", "prev": "active"},
    ]


@pytest.fixture
def pipeline(spark: SparkSession, url: str, tmp_path: Path) -> Pipeline:
    plan = Plan(tmp_path / "lake", ServerAddress(url=url), QueueSelection(pattern="*"), samples=False)
    return Pipeline(spark, plan)


def ordinals(pipeline: Pipeline, queue: str = "q") -> list[int]:
    found = pipeline.tables.read("events", queues=[queue]).select("ordinal").collect()
    return sorted(row.ordinal for row in found)


def rows(pipeline: Pipeline, table: str, *columns: str) -> list[Any]:
    return sorted(tuple(row) for row in pipeline.tables.read(table).select(*columns).collect())


def disturb(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lets a compaction remove, once, the files that the next build replaces. Returns these files."""
    publish, taken = pipeline.lake.publish, list[str]()

    def meanwhile(change: Change, base: Version | None = None) -> Version:
        if change.why.startswith("build") and not taken:
            taken.append(next(path for path in change.remove if path.startswith("jobs/")))
            Lake(pipeline.lake.root).publish(Change("compact", remove=frozenset(taken)))
        return publish(change, base)

    monkeypatch.setattr(pipeline.builder._lake, "publish", meanwhile)
    return taken


def test_from_events_to_tables(pipeline: Pipeline, emit: Emit, monkeypatch: pytest.MonkeyPatch) -> None:
    emit("q", *life("1"), *life("2")[:3], at=FIRST)
    emit("other", *life("1"), at=FIRST)
    built: list[int] = []
    monkeypatch.setattr(pipeline, "_built", lambda: built.append(pipeline.lake.head().number))
    assert pipeline.once() == ["2026-11-02"]
    assert built == [pipeline.lake.head().number], "alerts are evaluated after the build"
    assert rows(pipeline, "jobs", "queue", "job_id", "state") == [
        ("other", "1", "completed"),
        ("q", "1", "completed"),
        ("q", "2", "running"),
    ]
    (answer,) = pipeline.query(
        "select sum(arrivals) as n from queue_metrics where window = 'day' and name = '*'"
    ).collect()
    assert answer.n == 3
    version = pipeline.lake.head().number
    assert pipeline.once() == []
    assert pipeline.lake.head().number == version, "nothing new, nothing published"
    emit("q", *life("2")[3:], at=FIRST + 1000)
    taken = disturb(pipeline, monkeypatch)
    assert pipeline.once() == ["2026-11-02"]
    assert taken, "concurrent maintenance makes it build again"
    assert rows(pipeline, "jobs", "queue", "job_id", "state")[-1] == ("q", "2", "completed")
    assert ordinals(pipeline) == list(range(1, 9))


def test_open_jobs_move_on_to_the_next_day(pipeline: Pipeline, emit: Emit) -> None:
    emit("q", *life("1"), *life("2")[:3], at=FIRST)
    pipeline.once()
    emit("q", *life("2")[3:], at=FIRST + DAY_MS)
    assert pipeline.once() == ["2026-11-02", "2026-11-03"]
    found = [(str(day), job, state) for day, job, state in rows(pipeline, "jobs", "day", "job_id", "state")]
    assert found == [("2026-11-02", "1", "completed"), ("2026-11-03", "2", "completed")]


def test_a_batch_that_was_published_but_not_noted_is_not_doubled(pipeline: Pipeline, emit: Emit) -> None:
    emit("q", *life("1"), at=FIRST)
    pipeline.ingest()
    commits = pipeline.lake.root / "_checkpoints" / "main" / "commits"
    for path in (commits / "0", commits / ".0.crc"):
        path.unlink()
    emit("q", *life("2"), at=FIRST + 1000)
    pipeline.ingest()
    assert ordinals(pipeline) == list(range(1, 9))


def test_a_lost_checkpoint_is_no_loss(pipeline: Pipeline, emit: Emit) -> None:
    emit("q", *life("1"), at=FIRST)
    pipeline.ingest()
    shutil.rmtree(pipeline.lake.root / "_checkpoints")
    emit("q", *life("2"), at=FIRST + 1000)
    pipeline.ingest()
    assert ordinals(pipeline) == list(range(1, 9))


def test_a_checkpoint_of_before_is_refused(pipeline: Pipeline, emit: Emit, tmp_path: Path) -> None:
    emit("q", *life("1"), at=FIRST)
    pipeline.ingest()
    shutil.copytree(pipeline.lake.root / "_checkpoints", tmp_path / "old")
    emit("q", *life("2"), at=FIRST + 1000)
    pipeline.ingest()
    shutil.rmtree(pipeline.lake.root / "_checkpoints")
    shutil.copytree(tmp_path / "old", pipeline.lake.root / "_checkpoints")
    emit("q", *life("3"), at=FIRST + 2000)
    with pytest.raises(Exception, match="does not fit the lake"):
        pipeline.ingest()
    assert ordinals(pipeline) == list(range(1, 9))


def test_gaps_are_in_their_table(pipeline: Pipeline, emit: Emit, store: redis.Redis) -> None:
    emit("q", *life("1"), at=FIRST)
    pipeline.ingest()
    emit("q", *life("2"), *life("3"), at=FIRST + 1000)
    store.xtrim("bull:q:events", maxlen=2, approximate=False)
    pipeline.once()
    assert rows(pipeline, "gaps", "queue", "first_lost", "last_lost", "count", "cause") == [
        ("q", 5, 10, 6, "trimmed")
    ]


def test_another_writer_on_the_same_mark_is_noticed(pipeline: Pipeline, emit: Emit) -> None:
    emit("q", *life("1"), at=FIRST)
    pipeline.ingest()
    pipeline.lake.publish(Change("other", marks={"ingest:main": {"q": {"id": "1-1", "n": 7, "life": 1}}}))
    emit("q", *life("2"), at=FIRST + 1000)
    with pytest.raises(Exception, match="does not fit the lake"):
        pipeline.ingest()


def test_lanes_go_with_their_queue(spark: SparkSession, emit: Emit, url: str, tmp_path: Path) -> None:
    lane = "q@any;c=cuda,gpu"
    client = redis.Redis.from_url(url)
    client.zadd("bull:q:ox:lanes", {"any;c=cuda,gpu": 1})
    emit("q", *life("1"), at=FIRST)
    emit(lane, *life("2"), *life("3")[:3], at=FIRST + 10)
    emit("other@somebody.example", *life("1"), at=FIRST)
    for selection, others in (
        (QueueSelection(("q",)), []),
        (QueueSelection(pattern="*"), [("other@somebody.example", None, "1", "completed")]),
    ):
        plan = Plan(tmp_path / f"lake-{selection.pattern}", ServerAddress(url=url), selection, samples=False)
        pipeline = Pipeline(spark, plan)
        pipeline.once()
        found = pipeline.tables.read("jobs").select("queue", "lane", "job_id", "state").collect()
        assert sorted(map(tuple, found), key=str) == [
            *others,
            ("q", "any;c=cuda,gpu", "2", "completed"),
            ("q", "any;c=cuda,gpu", "3", "running"),
            ("q", None, "1", "completed"),
        ]
    emit(lane, *life("3")[3:], at=FIRST + 1000)
    assert pipeline.once() == ["2026-11-02"]
    actual = pipeline.query(
        "select lane, sum(completed) as n from queue_metrics where queue = 'q' and window = 'day' "
        "and name = '*' group by lane order by lane"
    )
    assert [tuple(row) for row in actual.collect()] == [(None, 1), ("any;c=cuda,gpu", 2)]
    seen = pipeline.query("select distinct queue, lane from events where job_id = '3'").collect()
    assert [tuple(row) for row in seen] == [("q", "any;c=cuda,gpu")]
    assert pipeline.tables.read("jobs", queues=["q"]).count() == 3
    client.close()
