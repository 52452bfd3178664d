"""A refresh is one pass: it ends however busy the queues are, and builders of a lake take turns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.servers import wait_until
from tests.spark.build.test_spans import Made, Rows
from tests.spark.story import DAY_MS, Story

pytest.importorskip("pyspark")

from oxcart.spark.build.builder import HOLD_MS, Builder
from oxcart.spark.build.erase import erase
from oxcart.spark.build.notes import Ledger
from oxcart.spark.build.turn import Turn
from oxcart.spark.lake.upkeep import expire
from oxcart.spark.lake.versions import Change, Lake, Version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = "2026-11-02"


class Busy(Made):
    """A lake that gets new bronze whenever a build publishes.

    Args:
        spark: The session.
        root: The lake's folder.
        monkeypatch: Replaces the lake's `publish`.
    """

    def __init__(self, spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(spark, root)
        self.story = Story()
        self.builds = self.jobs = 0
        publish = self.lake.publish

        def meanwhile(change: Change, base: Version | None = None) -> Version:
            if change.why.startswith("build"):
                self.builds += 1
                assert self.builds < 10, "the pass does not end"
                self.arrive()
            return publish(change, base)

        monkeypatch.setattr(self.lake, "publish", meanwhile)

    def arrive(self) -> None:
        """One job more, which is added and run."""
        self.jobs += 1
        known = len(self.story.rows)
        self.story.run(f"job-{self.jobs}", ("completed", {}), take=HOLD_MS * 3)
        self.ingest(self.story.rows[known:])

    def completed(self) -> int:
        return self.tables.read("jobs").filter("state = 'completed'").count()


def test_a_refresh_ends_while_bronze_arrives_all_the_time(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Busy(spark, tmp_path / "lake", monkeypatch)
    made.arrive()
    assert made.builder.refresh() == [DAY]
    assert (made.builds, made.completed()) == (1, 1)
    assert Ledger(made.lake).look(made.lake.head()).stale() == {DAY: {"q": False}}, (
        "the rest waits for the next pass"
    )
    assert made.builder.refresh() == [DAY]
    assert (made.builds, made.completed()) == (2, 2)
    assert made.builder.rebuild(DAY, DAY) == [DAY]
    assert made.completed() == 4, "the days of the range, then one pass"


def test_a_day_that_is_handed_other_events_is_built_in_the_same_pass(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = Made(spark, tmp_path / "lake")
    story = Story()
    story.event("added", "long", name="n")
    story.event("waiting", "long")
    made.ingest(story.rows)
    known = len(story.rows)
    story.now += DAY_MS
    story.event("active", "long", prev="waiting")
    story.event("completed", "long", prev="active")
    made.ingest(story.rows[known:])
    assert made.builder.refresh() == [DAY, "2026-11-03"]
    # A job that was not known before: both days change.
    late = Story(at_ms=story.now - DAY_MS - 60_000)
    late.ordinal = 100
    late.event("added", "late", name="n")
    late.event("waiting", "late")
    made.ingest(late.rows)
    assert made.builder.refresh() == [DAY, "2026-11-03"]
    assert Ledger(made.lake).look(made.lake.head()).stale() == {}
    states = {(str(row.day), row.job_id): row.state for row in made.tables.read("jobs").collect()}
    assert states == {("2026-11-03", "long"): "completed", ("2026-11-03", "late"): "scheduled"}


def test_a_pass_ends_after_the_day_at_work_when_it_is_stopped(spark: SparkSession, tmp_path: Path) -> None:
    made = Made(spark, tmp_path / "lake")
    story = Story()
    story.run("a", ("completed", {}))
    story.now += DAY_MS
    story.run("b", ("completed", {}))
    made.ingest(story.rows)
    assert made.builder.refresh(stop=lambda: made.whys()[-1].startswith("build")) == [DAY]
    assert made.builder.refresh() == ["2026-11-03"]


def test_readers_of_delta_see_a_rebuilt_day_once(spark: SparkSession, tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    made = Made(spark, tmp_path / "lake")
    story = Story()
    story.run("a", ("completed", {}))
    made.ingest(story.rows)
    made.builder.refresh()
    assert made.builder.rebuild(DAY, DAY) == [DAY]
    expire(made.lake, older_than_ms=0)
    found = deltalake.DeltaTable(made.lake.root / "jobs").to_pyarrow_table().to_pylist()
    assert [row["job_id"] for row in found] == ["a"]


def test_builders_wait_for_their_turn_in_line(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    first, second = Turn(lake), Turn(Lake(lake.root))
    order: list[str] = []
    waits = threading.Event()

    def stop() -> bool:
        waits.set()
        return False

    def wait() -> None:
        with second.taken(stop) as taken:
            assert taken
            order.append("second")

    thread = threading.Thread(target=wait)
    with first.taken(), first.taken() as taken:
        assert taken, "the thread that has the turn may take it again"
        thread.start()
        assert waits.wait(30)
        order.append("first")
    with first.taken():
        order.append("first again")
    thread.join(30)
    assert order == ["first", "second", "first again"], "a builder does not overtake one that waits"


def test_a_wait_for_the_turn_can_be_stopped(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    with Turn(lake).taken(), Turn(lake).taken(stop=lambda: True) as taken:
        assert not taken


@pytest.mark.parametrize("kind", ["erase", "rebuild"])
def test_erasures_and_rebuilds_end_beside_a_pipeline_that_builds_all_the_time(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    made = Made(spark, tmp_path / "lake")
    story = Story()

    def arrive(job: str, **labels: str) -> None:
        known: int = len(story.rows)
        story.event("added", job, name="n")
        story.event("waiting", job)
        story.event("active", job, prev="waiting")
        end = story.event("completed", job, prev="active", after=HOLD_MS * 3)
        story.record(end, "completed", job, **labels)
        rows: Rows = story.rows[known:]
        made.ingest(rows)

    arrive("subject", corr="ada")
    arrive("other")
    made.builder.refresh()
    done, builds, ends = threading.Event(), list[int](), list[object]()

    def build() -> None:
        try:
            while not done.is_set():
                arrive(f"job-{len(builds)}")
                builds.append(len(made.builder.refresh()))
        except Exception as error:
            ends.append(error)

    def act(work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            ends.append(error)

    thread = threading.Thread(target=build)
    thread.start()
    try:
        wait_until(lambda: len(builds) > 0 or ends, "it builds", 120)
        beside = Made(spark, made.lake.root)
        if kind == "erase":
            act(lambda: erase(beside.tables, beside.builder, "ada"))
        else:
            act(lambda: Builder(spark, beside.lake).rebuild(DAY, DAY))
        during = len(builds)
        wait_until(lambda: len(builds) > during or ends, "it still builds", 120)
    finally:
        done.set()
        thread.join(120)
    assert ends == []
    made.builder.refresh()
    jobs = {row.job_id for row in made.tables.read("jobs").collect()}
    assert ("subject" in jobs) is (kind == "rebuild")
    assert jobs - {"subject"} == {"other", *(f"job-{number}" for number in range(len(builds)))}


def test_a_build_that_is_killed_between_queues_of_a_file_doubles_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(spark, tmp_path / "lake")
    late, other = Story("late"), Story("other")
    for story in (late, other):
        story.run("1", ("completed", {}), take=HOLD_MS * 3)
    made.ingest([*late.rows, *other.rows])
    made.builder.refresh()
    # Both queues have new rows in one file, and one of them must be rebuilt as a whole.
    known = len(other.rows)
    other.run("2", ("completed", {}), take=HOLD_MS * 3)
    before = Story("late", late.now - HOLD_MS * 2)
    before.ordinal = 100
    before.event("added", "2", name="n")
    made.ingest([*before.rows, *other.rows[known:]])
    publish = made.lake.publish

    def killed(change: Change, base: Version | None = None) -> Version:
        version = publish(change, base)
        if change.why.startswith("build"):
            raise KeyboardInterrupt
        return version

    with monkeypatch.context() as patch:
        patch.setattr(made.lake, "publish", killed)
        with pytest.raises(KeyboardInterrupt):
            made.builder.refresh()
    assert Ledger(made.lake).look(made.lake.head()).stale() == {DAY: {"late": True, "other": False}}
    made.builder.refresh()
    assert Ledger(made.lake).look(made.lake.head()).stale() == {}
    whole = made.shown()
    made.builder.rebuild(DAY, DAY)
    assert made.shown() == whole
    assert len(made.tables.read("jobs").collect()) == 3
