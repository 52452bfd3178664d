"""Tables in Spark: what a query reads of them, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.build.test_spans import Made
from tests.spark.story import DAY_MS, MIDNIGHT, Story
from tests.spark.transforms.test_flows_and_schedules import of_duckdb, of_spark, parent_of

pytest.importorskip("pyspark")

from oxcart.history.reader import LakeReader
from oxcart.spark.lake.tables import SCHEMAS, TABLES, TALLIES, Tables
from oxcart.spark.lake.versions import Lake
from oxcart.spark.read.entries import SCHEMA
from oxcart.spark.transforms import build
from oxcart.spark.transforms.lanes import split_lanes
from oxcart.spark.views import critical_paths
from oxcart.spark.views.catalogue import VIEWS
from oxcart.spark.views.dialect import DUCKDB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAYS = [f"2026-11-0{number}" for number in range(2, 7)]


def test_the_columns_are_those_of_the_transforms(spark: SparkSession) -> None:
    made = build.tables(spark.createDataFrame([], SCHEMA), persist=False)
    for table in (*build.SILVER, *build.GOLD, TALLIES):
        rows = made[table] if table == TALLIES else split_lanes(made[table], ())
        found = ", ".join(f"{one.name} {one.dataType.simpleString()}" for one in rows.schema.fields)
        assert SCHEMAS[table] == found, table
    assert SCHEMAS.keys() == {*TABLES, TALLIES}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("SELECT count(*) FROM gaps", {"gaps"}),
        ("select * from Jobs j join `attempts` using (job_id)", {"jobs", "attempts"}),
        ("SELECT myjobs FROM failures_x", set()),
        ("SELECT flow_id FROM critical_paths", {"critical_paths"}),
    ],
)
def test_a_query_registers_only_the_tables_that_it_names(
    spark: SparkSession, tmp_path: Path, text: str, named: set[str]
) -> None:
    tables = Tables(spark, Lake(tmp_path / "lake"))
    assert tables.register(text=text).keys() == named


def test_without_a_query_all_stored_tables_are_registered(spark: SparkSession, tmp_path: Path) -> None:
    assert Tables(spark, Lake(tmp_path / "lake")).register().keys() == set(TABLES)
    assert not set(TABLES) & VIEWS.keys()


@pytest.fixture(scope="module")
def trees(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Trees of five days. That of the third day began on the second, and one of the fourth ends on the fifth.

    A job of the third day was added on the first, but is no tree.
    """
    top, part = Story("top", MIDNIGHT), Story("part", MIDNIGHT)

    def begin(job: str, day: int) -> None:
        top.now = max(top.now, MIDNIGHT + day * DAY_MS + 120_000)
        top.event("added", job, name="sum")
        top.event("waiting-children", job)

    def child(job: str, parent: str, day: int) -> None:
        part.now = max(part.now, MIDNIGHT + day * DAY_MS + 130_000)
        part.event("added", job, name="part")
        part.event("waiting", job)
        part.event("active", job, prev="waiting")
        entry = part.event("completed", job, prev="active", after=50)
        part.record(entry, "completed", job, parent=parent_of(parent))

    def end(job: str, day: int) -> None:
        top.now = max(top.now, MIDNIGHT + day * DAY_MS + 150_000)
        top.event("waiting", job, prev="waiting-children")
        top.event("active", job, prev="waiting")
        top.event("completed", job, prev="active", after=20)

    top.event("added", "waits", name="slow")
    top.event("waiting", "waits")
    begin("first", 0)
    child("c0", "first", 0)
    end("first", 0)
    begin("over", 1)
    child("c1", "over", 1)
    top.now = MIDNIGHT + 2 * DAY_MS + 140_000
    top.event("active", "waits", prev="waiting")
    top.event("completed", "waits", prev="active")
    end("over", 2)
    begin("long", 3)
    child("c3", "long", 3)
    end("long", 4)
    made = Made(spark, tmp_path_factory.mktemp("trees") / "lake")
    made.ingest(sorted([*top.rows, *part.rows], key=lambda row: row["at_ms"]))
    assert made.builder.refresh() == DAYS
    return made


def test_critical_paths_of_a_day_are_those_of_all_days(trees: Made) -> None:
    whole = of_spark(trees.tables, "critical_paths")
    assert {(row["day"], row["flow_id"]) for row in whole} == {
        (DAYS[0], "first"),
        (DAYS[2], "over"),
        (DAYS[4], "long"),
    }
    for day in DAYS:
        wanted = [row for row in whole if row["day"] == day]
        assert of_spark(trees.tables, "critical_paths", days=[day]) == wanted, day
        assert of_duckdb(trees.lake, "critical_paths", days=[day]) == wanted, day
    assert of_spark(trees.tables, "critical_paths", days=[]) == []


@pytest.mark.parametrize(
    ("day", "read"),
    [(DAYS[0], DAYS[:1]), (DAYS[2], DAYS[1:3]), (DAYS[3], DAYS[3:]), (DAYS[4], DAYS[3:])],
)
def test_critical_paths_of_a_day_read_the_days_of_its_trees(trees: Made, day: str, read: list[str]) -> None:
    head = trees.lake.head()

    def ask(text: str, days: Sequence[str]) -> list[tuple[Any, ...]]:
        with LakeReader(trees.lake, head, days=days) as reader:
            return list(reader.sql(text))

    known = sorted({file.day for file in head.of("jobs")})
    assert critical_paths.days(DUCKDB, ask, known, [day]) == read
