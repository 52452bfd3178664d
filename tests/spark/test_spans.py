"""A day that is built as it comes has the rows of one that is built at once."""

from __future__ import annotations

import datetime
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.story import DAY_MS, MIDNIGHT, Story, the_day, the_next_day

pytest.importorskip("pyspark")

from oxcart.spark.builder import HOLD_MS, Builder
from oxcart.spark.entries import rows_of
from oxcart.spark.lake import Change, Lake
from oxcart.spark.tables import BRONZE, OPEN, Tables
from oxcart.spark.transforms import build

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOWN = (*build.SILVER, *build.GOLD)
Rows = list[dict[str, Any]]


class Made:
    """A lake whose bronze comes by hand.

    Args:
        spark: The session.
        root: The lake's folder.
    """

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.lake = Lake(root)
        self.tables = Tables(spark, self.lake)
        self.builder = Builder(spark, self.lake)

    def ingest(self, rows: Rows) -> None:
        """A batch."""
        import pyarrow as pa

        batch = self.spark.createDataFrame(pa.Table.from_batches([rows_of(rows)]))
        self.lake.publish(Change("ingest", add=self.tables.write(batch, BRONZE, True)))

    def shown(self) -> dict[str, list[str]]:
        """All rows of all tables, as text."""
        found = {}
        for table in SHOWN:
            rows = self.tables.read(table).toArrow().to_pylist()
            found[table] = sorted(json.dumps(row, default=str, sort_keys=True) for row in rows)
        return found

    def whys(self) -> list[str]:
        """What the versions were for."""
        return [why for _, _, why in self.lake.history()]


def in_order(story: Story) -> Rows:
    """A story's rows as batches bring them: samples among the entries."""
    rows = [dict(row) for row in story.rows]
    for at, counts in story.samples:
        rows.append(
            {
                "day": at // DAY_MS,
                "queue": story.queue,
                "stream": "events",
                "kind": "counts",
                "at_ms": at,
                "data": json.dumps(counts),
            }
        )
    return sorted(rows, key=lambda row: row["at_ms"])


def cut(rows: Rows, *places: int) -> list[Rows]:
    edges = [0, *places, len(rows)]
    return [rows[a:b] for a, b in itertools.pairwise(edges) if b > a]


@pytest.fixture(scope="module")
def rows() -> Rows:
    """Two days with everything in them."""
    return in_order(the_next_day(the_day()))


@pytest.fixture(scope="module")
def at_once(spark: SparkSession, rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Made:
    made = Made(spark, tmp_path_factory.mktemp("once") / "lake")
    made.ingest(rows)
    made.builder.refresh()
    return made


def test_spans_give_the_rows_of_whole_days(
    spark: SparkSession, rows: Rows, at_once: Made, tmp_path: Path
) -> None:
    made = Made(spark, tmp_path / "lake")
    failed = next(at for at, row in enumerate(rows) if row["event"] == "failed")
    stalled = next(at for at, row in enumerate(rows) if row.get("event") == "stalled")
    # Between an end and what the same script says of it, in the middle of a job, and anywhere.
    for batch in cut(rows, failed + 1, stalled, stalled + 7):
        made.ingest(batch)
        made.builder.refresh()
    assert made.shown() == at_once.shown()


def test_a_span_settles_what_ended_and_shows_what_is_open(spark: SparkSession, tmp_path: Path) -> None:
    made = Made(spark, tmp_path / "lake")
    story = Story()
    story.run("old", ("completed", {}))
    story.tell("added", "open", name="n", after=HOLD_MS * 3)
    story.tell("waiting", "open")
    made.ingest(story.rows)
    made.builder.refresh()
    jobs = {(file.pending, file.rows) for file in made.lake.head().of("jobs")}
    assert jobs == {(False, 1), (True, 1)}
    kept = {file.path for file in made.lake.head().of("jobs") if not file.pending}
    assert {file.pending for file in made.lake.head().of(BRONZE)} == {False}
    before = len(story.rows)
    story.tell("active", "open", prev="waiting", after=HOLD_MS * 3)
    story.tell("completed", "open", prev="active")
    made.ingest(story.rows[before:])
    made.builder.refresh()
    assert kept < {file.path for file in made.lake.head().of("jobs")}, "what is settled stays"
    states = {row.job_id: row.state for row in made.tables.read("jobs").collect()}
    assert states == {"old": "completed", "open": "completed"}
    assert made.tables.read(OPEN).select("job_id").distinct().count() == 1, "held for a moment"
    assert made.builder.refresh() == []


def test_a_row_that_comes_late_builds_the_day_anew(spark: SparkSession, tmp_path: Path) -> None:
    made = Made(spark, tmp_path / "lake")
    story = Story()
    story.run("a", ("failed", {"reason": "no"}))
    end = story.rows[-1]["entry_id"]
    story.run("b", ("completed", {}), take=HOLD_MS * 3)
    made.ingest(story.rows)
    made.builder.refresh()
    late = Story()
    late.record(end, "failed", "a", worker="w", category="permanent", reason="no")
    made.ingest(late.rows)
    made.builder.refresh()
    (attempt,) = made.tables.read("attempts").filter("job_id = 'a'").collect()
    assert (attempt.worker, attempt.category) == ("w", "permanent")


def test_a_record_that_is_ahead_waits_for_its_event(spark: SparkSession, tmp_path: Path) -> None:
    made = Made(spark, tmp_path / "lake")
    story = Story()
    story.tell("added", "a", name="n")
    story.tell("waiting", "a")
    story.tell("active", "a", prev="waiting")
    begun = list(story.rows)
    end = story.tell("completed", "a", prev="active", after=5000)
    ended = story.rows[-1]
    story.record(end, "completed", "a", worker="w")
    made.ingest([*begun, story.rows[-1]])
    made.builder.refresh()
    made.ingest([ended])
    made.builder.refresh()
    (attempt,) = made.tables.read("attempts").collect()
    assert (attempt.outcome, attempt.worker) == ("completed", "w")


def test_queues_of_one_day_grow_each_at_its_own_pace(spark: SparkSession, tmp_path: Path) -> None:
    made = Made(spark, tmp_path / "lake")
    slow, quick = Story("slow"), Story("quick", MIDNIGHT + 50_000_000)
    slow.run("1", ("completed", {}))
    quick.run("1", ("completed", {}))
    made.ingest(slow.rows + quick.rows)
    made.builder.refresh()
    told = [len(story.rows) for story in (slow, quick)]
    slow.run("2", ("completed", {}), take=1000)
    quick.run("2", ("completed", {}), take=1000)
    made.ingest(slow.rows[told[0] :] + quick.rows[told[1] :])
    assert made.builder.refresh() == [str(datetime.date(2026, 11, 2))]
    found = made.tables.read("queue_metrics").filter("window = 'day' and name = '*'").collect()
    assert {(row.queue, row.arrivals, row.completed) for row in found} == {("slow", 2, 2), ("quick", 2, 2)}
