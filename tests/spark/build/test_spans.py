"""A day that is built by spans has the same rows as a day that is built as a whole."""

from __future__ import annotations

import datetime
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.story import DAY_MS, MIDNIGHT, Story, the_day, the_next_day
from tests.spark.sums import added_up

pytest.importorskip("pyspark")

from oxcart.spark.build.builder import HOLD_MS, Builder, _by_queue
from oxcart.spark.lake.bronze import BRONZE
from oxcart.spark.lake.columns import OPEN
from oxcart.spark.lake.tables import Tables
from oxcart.spark.lake.versions import Change, Lake
from oxcart.spark.read.entries import rows_of
from oxcart.spark.transforms import build

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOWN = (*build.SILVER, *build.GOLD)
Rows = list[dict[str, Any]]


class Made:
    """A lake whose bronze the test writes.

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
            rows = added_up(table, self.tables.read(table).toArrow().to_pylist())
            found[table] = sorted(json.dumps(row, default=str, sort_keys=True) for row in rows)
        return found

    def whys(self) -> list[str]:
        """Returns the reasons of the versions."""
        return [why for _, _, why in self.lake.history()]


def in_order(story: Story) -> Rows:
    """Returns a story's rows in batches, with samples among the entries."""
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
    # Between an end and later events of the same script, and in the middle of a job.
    for batch in cut(rows, failed + 1, stalled):
        made.ingest(batch)
        made.builder.refresh()
    assert made.shown() == at_once.shown()


class Grown(Made):
    """A day of several queues that came in two batches: new rows are separated by queue.

    ``settled`` has a job that ended and a job that ends later. In ``late`` a record follows its settled
    event, in ``ahead`` a record comes before its event. ``slow`` and ``quick`` are hours apart.
    """

    def __init__(self, spark: SparkSession, root: Path) -> None:
        super().__init__(spark, root)
        first, second = self._batches()
        self.ingest(first)
        self.builder.refresh()
        self.before = self.lake.head()
        self.ingest(second)
        self.days = self.builder.refresh()

    def _batches(self) -> tuple[Rows, Rows]:
        first: Rows = []
        second: Rows = []
        story = Story("settled")
        story.run("old", ("completed", {}))
        story.event("added", "open", name="n", after=HOLD_MS * 3)
        story.event("waiting", "open")
        first += story.rows
        actual = len(story.rows)
        story.event("active", "open", prev="waiting", after=HOLD_MS * 3)
        story.event("completed", "open", prev="active")
        second += story.rows[actual:]

        story = Story("late")
        story.run("a", ("failed", {"reason": "no"}))
        end = story.rows[-1]["entry_id"]
        story.run("b", ("completed", {}), take=HOLD_MS * 3)
        first += story.rows
        late = Story("late")
        late.record(end, "failed", "a", worker="w", category="permanent", reason="no")
        second += late.rows

        story = Story("ahead")
        story.event("added", "a", name="n")
        story.event("waiting", "a")
        story.event("active", "a", prev="waiting")
        end = story.event("completed", "a", prev="active", after=5000)
        story.record(end, "completed", "a", worker="w")
        *begun, ended, record = story.rows
        first += [*begun, record]
        second.append(ended)

        for story in (Story("slow"), Story("quick", MIDNIGHT + 50_000_000)):
            story.run("1", ("completed", {}))
            first += story.rows
            actual = len(story.rows)
            story.run("2", ("completed", {}), take=1000)
            second += story.rows[actual:]
        return first, second

    def of(self, table: str, queue: str) -> list[Any]:
        return self.tables.read(table, queues=[queue]).collect()


@pytest.fixture(scope="module")
def grown(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Grown:
    return Grown(spark, tmp_path_factory.mktemp("grown") / "lake")


def test_a_span_settles_what_ended_and_shows_what_is_open(grown: Grown) -> None:
    before = grown.before.of("jobs")
    held = {
        file.pending: {row.job_id for row in grown.tables.load("jobs", [file], queues=["settled"]).collect()}
        for file in before
    }
    assert held == {False: {"old"}, True: {"open"}}
    assert {file.pending for file in grown.before.of(BRONZE)} == {False}
    states = {row.job_id: row.state for row in grown.of("jobs", "settled")}
    assert states == {"old": "completed", "open": "completed"}
    assert {row.job_id for row in grown.of(OPEN, "settled")} == {"open"}, "held for a moment"
    assert grown.builder.refresh() == []


def test_a_row_that_comes_late_builds_the_day_anew(grown: Grown) -> None:
    (attempt,) = [row for row in grown.of("attempts", "late") if row.job_id == "a"]
    assert (attempt.worker, attempt.category) == ("w", "permanent")
    before = {file.path for file in grown.before.of("jobs") if "late" in grown.lake.streams(file)}
    assert before
    assert not before & {file.path for file in grown.lake.head().of("jobs")}


def test_a_record_that_is_ahead_waits_for_its_event(grown: Grown) -> None:
    (attempt,) = grown.of("attempts", "ahead")
    assert (attempt.outcome, attempt.worker) == ("completed", "w")


def test_queues_of_one_day_grow_each_at_its_own_pace(grown: Grown) -> None:
    assert grown.days == [str(datetime.date(2026, 11, 2))]
    for queue in ("slow", "quick"):
        (day,) = [row for row in grown.of("queue_metrics", queue) if (row.window, row.name) == ("day", "*")]
        assert (day.arrivals, day.completed) == (2, 2)


def test_queues_share_files_and_one_that_is_idle_keeps_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    made = Made(spark, tmp_path / "lake")
    stories = [Story(f"q{number:02}") for number in range(20)]
    for story in stories:
        story.run("1", ("completed", {}), take=HOLD_MS * 3)
        story.event("added", "open", name="n")
        story.event("waiting", "open")
    made.ingest([row for story in stories for row in story.rows])
    made.builder.refresh()
    by_table = {name: len(made.lake.head().of(name)) for name in (*SHOWN, OPEN)}
    assert max(by_table.values()) <= 2, "a settled and a pending file, however many queues"

    def settled(table: str) -> set[str]:
        return {file.path for file in made.lake.head().of(table) if not file.pending}

    kept = {table: settled(table) for table in SHOWN}
    for _ in range(2):
        story = stories[3]
        known = len(story.rows)
        story.run(f"{known}", ("completed", {}), take=HOLD_MS * 3)
        made.ingest(story.rows[known:])
        made.builder.refresh()
    assert all(kept[table] <= settled(table) for table in SHOWN), "no settled row is written again"
    idle = [file for file in made.lake.head().of("jobs") if file.pending and "q00" in made.lake.streams(file)]
    assert [len(made.lake.streams(file)) for file in idle] == [19], "the others' open jobs, once"
    jobs = made.tables.read("jobs").collect()
    assert len(jobs) == len({(row.queue, row.job_id) for row in jobs}) == 42
    anew = Made(spark, tmp_path / "anew")
    anew.ingest([row for story in stories for row in story.rows])
    anew.builder.refresh()
    assert made.shown() == anew.shown()


def test_a_job_replayed_in_a_later_span_keeps_name_and_creation(spark: SparkSession, tmp_path: Path) -> None:
    story = Story("q")
    story.run("1", ("failed", {"reason": "no"}), name="charge")
    story.event("retries-exhausted", "1", after=0, attempts_made=1)
    created = int(story.rows[0]["at_ms"])
    story.run("later", ("completed", {}), take=HOLD_MS * 3)
    known = len(story.rows)
    replayed = story.event("waiting", "1", prev="failed", after=5000)
    story.record(replayed, "replayed", "1", name="charge", created=created, tags='{"plan": "p1"}')
    story.event("active", "1", prev="waiting")
    story.event("completed", "1", prev="active", after=10)
    made = Made(spark, tmp_path / "lake")
    for batch in cut(story.rows, known):
        made.ingest(batch)
        made.builder.refresh()
    rows = [row for row in made.tables.read("jobs").collect() if row.job_id == "1"]
    assert {(row.born, row.name, row.created_ms, str(row.tags)) for row in rows} == {
        ("added", "charge", created, "None"),
        ("replayed", "charge", created, "{'plan': 'p1'}"),
    }
    attempts = [row for row in made.tables.read("attempts").collect() if row.job_id == "1"]
    assert [row.name for row in attempts] == ["charge", "charge"], "though no worker recorded them"
    at_once = Made(spark, tmp_path / "once")
    at_once.ingest(story.rows)
    at_once.builder.refresh()
    assert made.shown() == at_once.shown()


def test_a_queue_that_grows_alone_is_built_without_the_rows_of_its_lanes(
    spark: SparkSession, tmp_path: Path
) -> None:
    stories = [Story("video"), Story("video@all;c=gpu")]
    for story in stories:
        story.lose(2)
        story.run("1", ("failed", {"reason": "no"}), take=HOLD_MS * 3)
        story.event("added", "open", name="n")
        story.event("waiting", "open")
    made = Made(spark, tmp_path / "lake")
    made.ingest([row for story in stories for row in story.rows])
    made.builder.refresh()
    for story in stories:  # each grows while the other one is idle
        known = len(story.rows)
        story.run("2", ("failed", {"reason": "no"}), take=HOLD_MS * 3)
        made.ingest(story.rows[known:])
        made.builder.refresh()
    anew = Made(spark, tmp_path / "anew")
    anew.ingest([row for story in stories for row in story.rows])
    anew.builder.refresh()
    lanes = {(row.queue, row.lane) for row in made.tables.read("jobs").collect()}
    assert lanes == {("video", None), ("video", "all;c=gpu")}
    assert made.shown() == anew.shown()


def test_a_later_span_has_the_code_of_the_one_before(spark: SparkSession) -> None:
    """Spark caches compiled code by its text: with times in it, each refresh would compile again."""

    def code(through: int) -> str:
        rows = spark.range(5_000).selectExpr("cast(id % 2 as string) as queue", "id as at_ms")
        plan = rows.filter(rows["at_ms"] > _by_queue({"1": through}))._jdf.queryExecution()
        return str(plan.debug().codegenToSeq().apply(0)._2())

    wanted = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
    before = {name: str(spark.conf.get(name)) for name in wanted}
    try:
        for name, value in wanted.items():
            spark.conf.set(name, value)
        assert code(1_000) == code(2_000)
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
