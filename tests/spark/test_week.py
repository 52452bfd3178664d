"""Short forms of ``make pipeline-week``: a pipeline reads a week, and all tables are right."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from tests.spark.conftest import long
from tests.spark.week.driver import WeekPipeline
from tests.spark.week.judge import LONG_BUILDS, many_files, missed_bounds
from tests.spark.week.run import MOST_FILES, Seen, Size, Week, memory_by_age, pace, spread
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


GOOD = {
    "rows_read_per_new_first": 2.0,
    "rows_read_per_new_last": 2.5,
    "cpu_s_per_1000_first": 1.0,
    "cpu_s_per_1000_last": 1.2,
    "memory_young_mb": 1000.0,
    "memory_old_mb": 1200.0,
    "latest_start_s": 1.0,
    "long_builds": 0.05,
    "files_per_table_and_day": 100.0,
}


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("rows_read_per_new_last", 2.7, "rows_read_per_new is 1.35 times that of the beginning, at most 1.3"),
        ("cpu_s_per_1000_last", 1.5, "cpu_s_per_1000 is 1.50 times that of the beginning, at most 1.3"),
        ("memory_old_mb", 1300.0, "memory is 1.30 times that of the beginning, at most 1.25"),
        ("latest_start_s", 2.5, "latest_start_s is 2.50, at most 2.0"),
        ("long_builds", 0.2, "long_builds is 0.20, at most 0.1"),
    ],
)
def test_week_misses_each_bound(name: str, value: float, line: str) -> None:
    assert missed_bounds(GOOD) == []
    assert missed_bounds({**GOOD, name: value}) == [line]


@pytest.mark.parametrize("name", ["cpu_s_per_1000_first", "memory_old_mb", "long_builds"])
def test_week_misses_a_bound_that_was_not_measured(name: str) -> None:
    (line,) = missed_bounds({key: value for key, value in GOOD.items() if key != name})
    assert line.endswith("was not measured: the week is too short")


def test_week_counts_files_of_a_table_and_day() -> None:
    assert many_files(GOOD) == []
    assert len(many_files({**GOOD, "files_per_table_and_day": MOST_FILES + 1.0})) == 1


def test_builds_that_all_take_longer_than_their_pace_are_long() -> None:
    journal = [{"pid": 1, "began": 120.0 * at, "seconds": 120.0, "new": 9} for at in range(10)]
    journal += [{"pid": 1, "began": 1200.0 + 30 * at, "seconds": 0.1, "new": 0} for at in range(100)]
    found = pace(journal, 30.0)
    assert found["latest_start_s"] == 0  # each began when the one before it ended
    assert found["long_builds"] == 1 > LONG_BUILDS
    assert found["slowest_build_s"] == 120


def test_pace_leaves_out_the_first_builds_of_each_process() -> None:
    journal = [
        {"pid": pid, "began": 1000.0 * pid + 30 * at, "seconds": 60.0 if at < 2 else 5.0, "new": 9}
        for pid in (1, 2)
        for at in range(6)
    ]
    found = pace(journal, 30.0)
    assert found["long_builds"] == 0
    assert found["warm_builds"] == 8
    assert pace(journal[:2], 30.0).keys() == {"latest_start_s", "warm_builds"}


def test_memory_is_that_of_the_last_process_by_its_age() -> None:
    seen = [Seen(0, 0.0, 9000.0, 1, pid=1) for _ in range(8)]
    seen += [Seen(0, 0.0, float(mb), 1, pid=2) for mb in (1, 1, 100, 100, 110, 110, 130, 130)]
    found = memory_by_age(seen)
    assert found == {"steps_of_last_process": 8, "memory_young_mb": 100, "memory_old_mb": 130}


def test_kills_of_a_week_end_before_its_last_half() -> None:
    full = Size()
    kills = spread(full.kills, 25, full.steps // 2)
    assert len(kills) == full.kills
    assert 25 <= min(kills) < max(kills) < full.steps // 2
