"""A short form of ``make pipeline-week``: a killed pipeline reads a week, and all tables are right."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from oxcart.spark.lake.versions import Lake
from tests.spark.conftest import long
from tests.spark.week.run import MOST_FILES, Size, Week
from tests.spark.week.truth import Truth

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
def test_tables_of_a_week_equal_the_truth_after_kills_and_trims(url: str, tmp_path: Path) -> None:
    week = Week(SHORT, url, tmp_path)
    week.run()
    truth = Truth(Lake(week.lake.root), tmp_path / "truth", SHORT, week.begin)
    assert truth.differences() == {}
    facts, figures = truth.facts(), week.figures()
    assert 0 < facts["entries lost, as gaps say"] < facts["entries written"] / 2
    assert facts["jobs that lost entries"] < facts["jobs"] / 2
    assert figures["kills"] == 1
    assert figures["files_per_table_and_day"] <= MOST_FILES
