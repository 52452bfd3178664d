"""Erasing leaves the tables as if the subject had never existed, and no data of it on disk."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oxcart.model.errors import ValidationError
from tests.spark.story import DAY_MS, MIDNIGHT, Story

pytest.importorskip("pyspark")

from oxcart.spark.build.erase import MARK, Erased, erase
from oxcart.spark.lake.versions import Change, LakeConflict
from oxcart.spark.read.position import Position
from oxcart.spark.read.spool import Spool, position_of
from tests.spark.build.test_spans import Made, Rows, in_order
from tests.spark.lake.contents import words_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "ada@example.com"
#: The correlation id, and the ids of jobs that no other subject has.
SUBJECT, MINE, OPEN = "subject-9c1e77", "job-mine-51d2", "job-open-8e3b"
TRACES = {SECRET, SUBJECT, MINE, OPEN}


def lives(mine: bool) -> Story:
    """Two days of jobs, with or without the subject. On the second day only the subject has jobs."""
    s = Story()
    s.run("theirs", ("completed", {"result": "1"}), name="welcome")
    end = s.event("added", "both", name="charge")  # an id that is used twice, for two subjects
    s.record(end, "added", "both", corr="bob")
    s.event("waiting", "both")
    s.event("failed", "both", prev="waiting", reason="bob is gone")
    s.event("removed", "both", prev="failed")
    own: Rows = []

    def add(event: str, job: str, outcome: str = "", **fields: Any) -> None:
        at = len(s.rows)
        entry = s.event(event, job, **{k: v for k, v in fields.items() if k != "corr"})
        if "corr" in fields:
            s.record(entry, outcome or event, job, corr=fields["corr"], tags='{"mail":"' + SECRET + '"}')
        own.extend(s.rows[at:])

    add("added", "both", name="charge", corr=SUBJECT)
    add("waiting", "both")
    add("active", "both", prev="waiting")
    add("completed", "both", prev="active", result=json.dumps(SECRET))
    add("added", MINE, name="welcome", corr=SUBJECT)
    add("waiting", MINE)
    add("active", MINE, prev="waiting")
    add("failed", MINE, prev="active", reason=f"{SECRET} refused", outcome="failed", corr="changed")
    add("added", OPEN, name="welcome", corr=SUBJECT)
    add("delayed", OPEN, due_ms=s.now + DAY_MS)
    s.run("after", ("completed", {"result": "2"}), name="welcome")
    s.now = MIDNIGHT + DAY_MS
    add("waiting", OPEN, prev="delayed")
    add("active", OPEN, prev="waiting")
    add("progress", OPEN, data=json.dumps(SECRET))
    if not mine:
        s.rows = [row for row in s.rows if row not in own]
    return s


def filled(spark: SparkSession, root: Path, *, mine: bool = True) -> Made:
    made = Made(spark, root)
    made.ingest(in_order(lives(mine)))
    made.builder.refresh()
    return made


def test_the_tables_are_those_without_the_subject(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = filled(spark, tmp_path / "lake")
    without = filled(spark, tmp_path / "without", mine=False).shown()
    assert words_in(made.lake.root, *TRACES) == TRACES
    before = made.lake.head().number
    with pytest.raises(ValidationError, match="correlation_id"):
        erase(made.tables, made.builder, "")
    assert erase(made.tables, made.builder, "nobody") == Erased(0, 0)
    assert erase(made.tables, made.builder, SUBJECT, dry_run=True) == Erased(3, 17)
    assert made.lake.head().number == before, "nothing was written yet"

    # A spool keeps its last rows after they were read.
    spool, at = Spool(made.lake.root / "_spool" / "main"), Position("5-0", 5, 1)
    batch = made.tables.read("events").filter("extra like '%ada@%'").limit(1).toArrow().to_batches()[0]
    spool.write("q", at, [batch])
    spool.write("q", Position("9-0", 9, 1), [batch.slice(0, 0)])
    made.lake.publish(Change("ingest", marks={"ingest:main": {"q": at.to_json()}}))

    # Another writer is first, and the command is killed when the bronze is rewritten.
    refresh = made.builder.refresh
    races: list[BaseException] = [LakeConflict("another writer"), KeyboardInterrupt()]

    def interrupted() -> list[str]:
        if races:
            raise races.pop(0)
        return refresh()

    monkeypatch.setattr(made.builder, "refresh", interrupted)
    with pytest.raises(KeyboardInterrupt):
        erase(made.tables, made.builder, SUBJECT)
    assert made.lake.head().marks[MARK] == {"jobs": 3, "rows": 17}, "it does not say whose"
    # Killed writers left files: one that was never published, and one that was about to be.
    left = made.tables.write(made.tables.read("events", made.lake.at(before)), "events", True)
    shutil.copy(made.lake.paths(left)[0], made.lake.root / "events" / "day=2026-11-02" / "left.parquet")
    found = erase(made.tables, made.builder, SUBJECT)
    assert (found.jobs, found.rows) == (3, 17), "those of the killed command included"
    assert found.days == ("2026-11-02", "2026-11-03")

    assert made.shown() == without
    assert made.lake.head().days("events") == ["2026-11-02"], "on the second day only the subject had jobs"
    assert words_in(made.lake.root, *TRACES) == set(), "old versions are gone, and their files"
    assert MARK not in made.lake.head().marks
    assert [row.job_id for row in made.tables.read("jobs").collect()].count("both") == 1, "bob's stays"
    segments = spool.segments("q")
    assert [position_of(one.path).n for one in segments] == [5, 9]
    assert erase(made.tables, made.builder, SUBJECT) == Erased(0, 0)
