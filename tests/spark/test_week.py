"""Short forms of ``make pipeline-week``: a pipeline reads a week, and all tables are right."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from tests.spark.conftest import long
from tests.spark.week.driver import WeekPipeline
from tests.spark.week.run import MOST_FILES, Size, Week
from tests.spark.week.truth import Truth

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: In this process and session, without kills.
CALM = Size(queues=3, entries=3000, days=2, steps=4, keep=1000, node_keeps=300, trims=1)
SHORT = Size(
    queues=3,
    entries=3000,
    days=2,
    steps=8,
    seconds=0.0,
    kills=1,
    resets=3,
    trims=1,
    every=5.0,
    keep=1000,
    node_keeps=100,
    executors=0,
    quick=True,
)


@long
@pytest.mark.timeout(1800)
def test_tables_of_a_week_equal_the_truth_after_trims(spark: SparkSession, url: str, tmp_path: Path) -> None:
    week = Week(CALM, url, tmp_path)
    week.prepare()
    pipeline = WeekPipeline(spark, week.lake.root, url, CALM.keep, week.journaled)
    pipeline.once()  # the queues are attached
    for step in range(CALM.steps):
        week.reset()
        week.write(step)
        if step == 1:
            week.trim()
        pipeline.once()
    pipeline.export(week.exported)
    truth = Truth(week.lake, week.exported, tmp_path / "truth", CALM, week.begin)
    assert truth.differences() == {}
    facts = truth.facts()
    assert 0 < facts["entries lost, as gaps say"] < facts["entries written"] / 4
    assert facts["jobs that lost entries"] < facts["jobs"] / 2
    assert min(facts["children"], facts["runs of schedules"], facts["samples"]) > 0


@long
@pytest.mark.timeout(1800)
def test_tables_of_a_week_equal_the_truth_after_kills_and_trims(url: str, tmp_path: Path) -> None:
    week = Week(SHORT, url, tmp_path)
    week.run()
    truth = Truth(week.lake, week.exported, tmp_path / "truth", SHORT, week.begin)
    assert truth.differences() == {}
    facts, figures = truth.facts(), week.figures()
    assert 0 < facts["entries lost, as gaps say"] < facts["entries written"] / 2
    assert facts["jobs that lost entries"] < facts["jobs"] / 2
    assert figures["kills"] == 1
    assert figures["files_per_table_and_day"] <= MOST_FILES
