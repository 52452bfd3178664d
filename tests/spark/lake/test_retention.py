"""Days go when they are too old or the lake is too large; open rows and the newest day stay."""

from __future__ import annotations

import logging
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oxcart.model.errors import ValidationError
from tests.spark.story import DAY_MS, MIDNIGHT, Story

pytest.importorskip("pyspark")

from oxcart.spark.lake.files import FIRST_DAY
from oxcart.spark.lake.retention import Retention, live_bytes, retain
from oxcart.spark.lake.versions import Change, File, Lake
from tests.history.lakes import write
from tests.spark.build.test_spans import Made

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST = date(2026, 11, 2)
DAYS = [FIRST + timedelta(days=at) for at in range(5)]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake of five days; it is noon of the fifth."""
    made = Lake(tmp_path / "lake", clock=lambda: MIDNIGHT + 4 * DAY_MS + DAY_MS // 2)
    made.publish(
        Change("build", add=[one_day(made, table, day) for table in ("events", "jobs") for day in DAYS])
    )
    return made


def one_day(lake: Lake, table: str, day: date) -> File:
    return write(lake, table, [{"day": day, "job_id": str(number)} for number in range(10)])


def days(lake: Lake, table: str) -> list[str]:
    return lake.head().days(table)


def test_limits_are_read_as_users_write_them() -> None:
    limits = Retention.read(["90d", "events=30d"], "1.5GB")
    assert limits.ages["jobs"] == 90 * DAY_MS
    assert limits.ages["events"] == 30 * DAY_MS
    assert limits.max_bytes == 3 << 29
    assert Retention.read() == Retention()
    for ages, size, message in (
        (["jobz=3d"], None, "table must be one of .*, got 'jobz'"),
        (["3h"], None, "retain must be at least 86400000 ms"),
        (["soon"], None, "retain must be a duration"),
        ([], "much", "max-bytes must be a size such as 500MB or 50GB, got 'much'"),
        ([], "0", "max-bytes must be a size"),
    ):
        with pytest.raises(ValidationError, match=message):
            Retention.read(ages, size)


def test_each_table_keeps_its_own_age(lake: Lake) -> None:
    assert retain(lake, Retention.read(["events=1d", "jobs=3d"])) == 4
    assert days(lake, "events") == [str(day) for day in DAYS[3:]]
    assert days(lake, "jobs") == [str(day) for day in DAYS[1:]]
    assert lake.head().marks[FIRST_DAY] == str(DAYS[3])
    assert retain(lake, Retention.read(["events=1d", "jobs=3d"])) == 0


def test_the_newest_day_stays_however_old(lake: Lake) -> None:
    later = Lake(lake.root, clock=lambda: MIDNIGHT + 100 * DAY_MS)
    retain(later, Retention.read(["1d"]))
    assert days(later, "jobs") == days(later, "events") == [str(DAYS[-1])]


def test_a_lake_over_its_bytes_loses_its_oldest_days(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    whole = live_bytes(lake.head())
    caplog.set_level(logging.WARNING)
    assert retain(lake, Retention(max_bytes=whole * 2)) == 0
    assert caplog.messages == []
    assert retain(lake, Retention(max_bytes=whole)) == 0
    assert f"beginning with {DAYS[0]}" in caplog.messages[-1], "it warns before it acts"
    assert retain(lake, Retention(max_bytes=whole * 7 // 10)) == 4
    assert days(lake, "jobs") == days(lake, "events") == [str(day) for day in DAYS[2:]]
    assert [message.rpartition("rows of ")[2] for message in caplog.messages[-2:]] == [
        f"{day} are dropped" for day in DAYS[:2]
    ]
    assert live_bytes(lake.head()) <= whole * 7 // 10
    retain(lake, Retention(max_bytes=1))
    assert days(lake, "jobs") == [str(DAYS[-1])]
    assert "after all days but the last were dropped" in caplog.messages[-1]


def test_open_jobs_outlive_the_bronze_of_their_day(spark: SparkSession, tmp_path: Path) -> None:
    made = Made(spark, tmp_path / "lake")
    story = Story()
    story.run("done", ("completed", {}), take=500)
    story.event("added", "open", name="n", after=1000)  # later than the end has to wait to be settled
    story.event("waiting", "open")
    made.ingest(story.rows)
    other = Story("other", at_ms=MIDNIGHT + 3 * DAY_MS)
    other.run("x", ("completed", {}), take=500)
    made.ingest(other.rows)
    made.builder.refresh()
    late = Lake(made.lake.root, clock=lambda: MIDNIGHT + 3 * DAY_MS + 1000)
    assert retain(late, Retention.read(["1d"])) > 0
    states = {row.job_id: row.state for row in made.tables.read("jobs").collect()}
    assert states == {"open": "scheduled", "x": "completed"}, "the ended job is gone"
    assert made.builder.refresh() == []
    # The queue goes on, on a later day: its job is known, and its first day is not rebuilt from nothing.
    known = len(story.rows)
    story.now = MIDNIGHT + 3 * DAY_MS
    story.event("active", "open", prev="waiting")
    story.event("completed", "open", prev="active", after=500)
    made.ingest(story.rows[known:])
    made.builder.refresh()
    (job,) = [row for row in made.tables.read("jobs").collect() if row.job_id == "open"]
    assert (str(job.day), job.state, job.name) == ("2026-11-05", "completed", "n")
    assert made.builder.rebuild("2026-11-01", "2026-11-04") == []
