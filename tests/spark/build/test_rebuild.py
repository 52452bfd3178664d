"""Rebuilding days: equal rows, racing writers, and readers that never see a half-built day."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oxcart.spark.options import QueueSelection, ServerAddress
from tests.spark.sums import added_up

pytest.importorskip("pyspark")

from oxcart.spark.build.builder import Builder
from oxcart.spark.lake.tables import TABLES, Tables
from oxcart.spark.lake.versions import Lake, LakeConflict
from oxcart.spark.pipeline import Pipeline, Plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Emit = Callable[..., list[str]]
DAY, DAY_MS = "2026-11-02", 86_400_000
FIRST = 1_793_577_600_000
JOBS = 12


def lives() -> list[dict[str, str]]:
    """Completed, failed and open jobs."""
    actual = []
    for number in range(JOBS):
        job = str(number)
        actual += [
            {"event": "added", "jobId": job, "name": f"n{number % 2}"},
            {"event": "waiting", "jobId": job},
        ]
        if number % 4:
            actual.append({"event": "active", "jobId": job, "prev": "waiting"})
            actual.append(
                {"event": "completed", "jobId": job, "returnvalue": "1", "prev": "active"}
                if number % 3
                else {"event": "failed", "jobId": job, "failedReason": f"no {job}", "prev": "active"}
            )
    return actual


def rows(tables: Tables) -> dict[str, list[str]]:
    head = tables.lake.head()
    return {
        name: sorted(
            json.dumps(row, default=str, sort_keys=True)
            for row in added_up(name, (row.asDict(True) for row in tables.read(name, head).collect()))
        )
        for name in TABLES
    }


def test_a_day_is_rebuilt_by_two_at_once_while_others_read(
    spark: SparkSession, url: str, emit: Emit, tmp_path: Path
) -> None:
    emit("q", *lives(), at=FIRST)
    emit("q", {"event": "active", "jobId": "0", "prev": "waiting"}, at=FIRST + DAY_MS)
    pipeline = Pipeline(
        spark, Plan(tmp_path / "lake", ServerAddress(url=url), QueueSelection(("q",)), samples=False)
    )
    pipeline.once()
    before = rows(pipeline.tables)
    assert before["gaps"] == []
    number = pipeline.lake.head().number

    ends: list[object] = []

    def rebuild() -> None:
        try:
            ends.append(Builder(spark, Lake(pipeline.lake.root)).rebuild(DAY, DAY))
        except Exception as error:
            ends.append(error)

    writers = [threading.Thread(target=rebuild) for _ in range(2)]
    for writer in writers:
        writer.start()
    reader, seen = Tables(spark, Lake(pipeline.lake.root)), set[int]()
    while not seen or len(ends) < len(writers):
        version = reader.lake.head()
        seen.add(version.number)
        ended = reader.read("jobs", version, days=[DAY]).filter("state in ('completed', 'failed')").count()
        day = reader.read("queue_metrics", version, days=[DAY]).filter("window = 'day' and name = '*'")
        (gold,) = day.collect()
        assert gold.completed + gold.failed == ended == JOBS - JOBS // 4, "one version, and all of it"
    for writer in writers:
        writer.join()
    failed = [end for end in ends if isinstance(end, Exception)]
    assert len(failed) < 2, failed
    for error in failed:
        assert isinstance(error, LakeConflict), error
        assert "another writer" in str(error)
        assert "run it again" in str(error)
    assert pipeline.lake.head().number > number, "it was built anew"
    assert rows(pipeline.tables) == before, "a day that is built anew has equal rows"
