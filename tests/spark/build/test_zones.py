"""Days are those of UTC, whatever the time zone of the session is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.build.test_spans import Made, Rows
from tests.spark.story import DAY_MS, MIDNIGHT, Story

pytest.importorskip("pyspark")

from oxcart.spark.lake.bronze import BRONZE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ZONE = "spark.sql.session.timeZone"
HOUR = 3_600_000


@pytest.fixture
def zone(spark: SparkSession) -> Iterator[None]:
    before = str(spark.conf.get(ZONE))
    yield
    spark.conf.set(ZONE, before)


def rows() -> Rows:
    """Jobs just after and just before midnight of UTC, a run of a schedule, and a job that fails at noon."""
    story = Story(at_ms=MIDNIGHT)
    story.run("early", ("completed", {}))
    story.now = MIDNIGHT + 12 * HOUR
    story.run("noon", ("failed", {"reason": "no"}))
    story.now = MIDNIGHT + 23 * HOUR + 59 * 60_000
    story.run(f"repeat:nightly:{MIDNIGHT + 23 * HOUR}", ("completed", {}))
    story.run("late", ("completed", {}))
    story.now = MIDNIGHT + DAY_MS
    story.run("tomorrow", ("completed", {}))
    return story.rows


@pytest.mark.usefixtures("zone")
def test_a_session_of_any_zone_builds_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    found = {}
    for name in ("UTC", "America/New_York", "Asia/Tokyo"):
        spark.conf.set(ZONE, name)
        made = Made(spark, tmp_path / name.replace("/", "-"))
        made.ingest(rows())
        assert made.builder.refresh() == ["2026-11-02", "2026-11-03"], name
        jobs = sorted((str(row.day), row.job_id) for row in made.tables.read("jobs").collect())
        runs = [str(row.day) for row in made.tables.read("schedules").collect()]
        found[name] = (made.shown(), jobs, runs, {file.day for file in made.lake.head().of(BRONZE)})
    assert found["UTC"][1] == [
        ("2026-11-02", "early"),
        ("2026-11-02", "late"),
        ("2026-11-02", "noon"),
        ("2026-11-02", f"repeat:nightly:{MIDNIGHT + 23 * HOUR}"),
        ("2026-11-03", "tomorrow"),
    ]
    assert found["America/New_York"] == found["UTC"]
    assert found["Asia/Tokyo"] == found["UTC"]
