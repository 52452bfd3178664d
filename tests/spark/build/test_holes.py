"""Gaps are found in new bronze and in the table ``gaps``, without old bronze."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.build.test_spans import Made
from tests.spark.story import DAY_MS, Story

pytest.importorskip("pyspark")

from oxcart.spark.build.holes import Holes
from oxcart.spark.lake.bronze import BRONZE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOST = 3


def gone(made: Made, days: set[str]) -> None:
    """Deletes bronze of some days, so that whoever opens it fails."""
    for path in made.lake.paths(made.lake.head().of(BRONZE, days=days)):
        Path(path).unlink()


def test_a_gap_ends_with_the_entry_behind_it_and_older_days_stay_closed(
    spark: SparkSession, tmp_path: Path
) -> None:
    made, story = Made(spark, tmp_path / "lake"), Story()
    story.run("old", ("completed", {}))
    made.ingest(story.rows)
    known = len(story.rows)
    story.now += DAY_MS
    story.run("young", ("completed", {}))
    last = story.now
    story.lose(LOST)
    made.ingest(story.rows[known:])
    assert made.builder.refresh() == ["2026-11-02", "2026-11-03"]
    gone(made, {"2026-11-02"})
    holes = Holes(made.lake)
    (gap,) = holes.open(made.lake.head())
    assert (gap.key, gap.lost, gap.after_ms) == ("q:1:9", LOST, last)
    assert list(holes.ended(made.lake.head(), [gap])) == []
    gone(made, {"2026-11-03"})  # while the gap waits, new files alone are searched
    known = len(story.rows)
    story.event("added", "next", name="n")
    made.ingest(story.rows[known:])
    (hole,) = holes.ended(made.lake.head(), holes.open(made.lake.head()))
    assert (hole.queue, hole.first, hole.after_ms, hole.before_ms) == ("q", 9, last, story.now)


def test_open_gaps_of_built_days_come_from_the_table_alone(spark: SparkSession, tmp_path: Path) -> None:
    made, story = Made(spark, tmp_path / "lake"), Story()
    story.run("a", ("completed", {}))
    story.lose(LOST)
    first = story.ordinal - LOST + 1
    story.run("b", ("completed", {}))
    story.lose(LOST)
    story.run("c", ("completed", {}))
    made.ingest(story.rows)
    (one, other) = Holes(made.lake).open(made.lake.head())
    noted = {"kind": "refilled", "ordinal": first, "at_ms": one.after_ms, "lost": 0}
    made.ingest([{**story.rows[0], **noted, "entry_id": None, "event": None, "job_id": None, "name": None}])
    made.builder.refresh()
    gone(made, {"2026-11-02"})
    assert Holes(made.lake).open(made.lake.head()) == [other], "the table has the count of the other"


def test_streams_that_were_made_anew_are_no_gaps_to_fill(spark: SparkSession, tmp_path: Path) -> None:
    made, story = Made(spark, tmp_path / "lake"), Story()
    story.run("a", ("completed", {}))
    known = {**story.rows[-1], "job_id": None, "event": None, "prev": None}
    made.ingest([*story.rows, {**known, "kind": "recreated", "ordinal": 5, "cause": "recreated"}])
    assert Holes(made.lake).open(made.lake.head()) == []
    made.builder.refresh()
    assert [row["cause"] for row in made.tables.read("gaps").collect()] == ["recreated"]
    assert Holes(made.lake).open(made.lake.head()) == []
