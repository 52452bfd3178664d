"""Flows and schedules in the tables: parents, children and critical paths; expected and actual runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.story import MIDNIGHT, Story

pytest.importorskip("pyspark")

from oxcart.history.reader import LakeReader
from oxcart.spark.lake.columns import VIEWED, public_name
from oxcart.spark.lake.tables import Tables
from oxcart.spark.lake.versions import Change, Lake
from oxcart.spark.read.entries import rows_of
from oxcart.spark.transforms import build
from tests.spark.transforms.test_transforms import GOLDEN, Rows, by_job, plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TEN = MIDNIGHT + 36_000_000
MINUTE = 60_000


def parent_of(job: str, queue: str = "top", **flags: bool) -> str:
    """The parent's fields in a child's hash."""
    return json.dumps({"id": job, "queueKey": f"bull:{queue}", **flags})


def run(s: Story, job: str, at: int, took: int, end: str = "completed", **record: Any) -> None:
    """A job that runs from a time on, by our worker if a record is given."""
    s.event("active", job, prev="waiting", after=TEN + at - s.now)
    entry = s.event(end, job, prev="active", after=took)
    if record:
        s.record(entry, end, job, name=s.queue, began=s.now - took, ended=s.now, worker="w", **record)


def the_flows() -> list[Story]:
    """A tree over two queues: `sum` waits for `a` and `b`, and `b` for `c`; and incomplete trees."""
    top, part = Story("top", TEN), Story("part", TEN)
    for job in ("sum", "stays"):
        top.event("added", job, name="sum")
        top.event("waiting-children", job)
    for job in ("a", "c", "d"):
        part.event("added", job, name="part")
        part.event("waiting", job)
    part.event("added", "b", name="merge")
    part.event("waiting-children", "b")
    run(part, "a", 100, 300, parent=parent_of("sum", fpof=True))
    run(part, "c", 500, 200, parent=parent_of("b", "part", idof=True))
    part.event("waiting", "b", prev="waiting-children", after=0)
    run(part, "b", 750, 150, parent=parent_of("sum"))
    run(part, "d", 1000, 10, parent=parent_of("stays"))  # its parent has not ended
    part.run("node", ("completed", {"result": "1"}))  # a child, but Node ran it
    top.event("waiting", "sum", prev="waiting-children", after=TEN + 900 - top.now)
    run(top, "sum", 950, 50)
    # A parent that ran without waiting for one of its children, which ended meanwhile.
    top.event("added", "hasty", name="hasty", after=TEN + 2000 - top.now)
    top.event("waiting-children", "hasty")
    part.event("added", "slow", name="part", after=TEN + 2000 - part.now)
    part.event("waiting", "slow")
    part.event("added", "quick", name="part")
    part.event("waiting", "quick")
    run(part, "quick", 2100, 100, "failed", reason="no", parent=parent_of("hasty", cpof=True))
    part.event("active", "slow", prev="waiting")
    top.event("waiting", "hasty", prev="waiting-children", after=TEN + 2205 - top.now)
    run(top, "hasty", 2300, 400)
    entry = part.event("completed", "slow", prev="active", after=TEN + 2500 - part.now)
    part.record(entry, "completed", "slow", parent=parent_of("hasty"), began=TEN + 2202, ended=TEN + 2500)
    return [top, part]


def the_schedules() -> Story:
    """`beat` runs each minute with two missing runs, `daily` has an expression, Node runs `node`."""
    s = Story("cron", TEN)

    def fire(schedule: str, due: int, late: int, rule: dict[str, Any] | None, end: str = "completed") -> None:
        job = f"repeat:{schedule}:{TEN + due}"
        s.event("added", job, name=schedule, after=max(1, TEN + due - 1000 - s.now))
        s.event("delayed", job, due_ms=TEN + due)
        s.event("waiting", job, prev="delayed", after=max(1, TEN + due - s.now))
        run(s, job, due + late, 10, end, **({} if rule is None else {"rule": json.dumps(rule)}))

    each = {"every": MINUTE, "count": 1}
    for number, minute in enumerate((1, 2, 5)):
        fire("beat", minute * MINUTE, 5 * (number + 1), {**each, "count": number + 1})
    hourly = {"pattern": "0 * * * *", "tz": "Europe/Berlin"}
    fire("hourly", 60 * MINUTE, 20, hourly)
    fire("node", 61 * MINUTE, 3, None)
    fire("hourly", 240 * MINUTE, 30, hourly, "failed")
    s.event("added", f"repeat:hourly:{TEN + 300 * MINUTE}", name="hourly")
    s.event("delayed", f"repeat:hourly:{TEN + 300 * MINUTE}", due_ms=TEN + 300 * MINUTE)
    s.event("added", f"repeat:beat:{TEN + 301 * MINUTE}", name="beat")
    s.event("delayed", f"repeat:beat:{TEN + 301 * MINUTE}", due_ms=TEN + 301 * MINUTE)
    s.event("removed", f"repeat:beat:{TEN + 301 * MINUTE}", prev="delayed")
    return s


def bronze_of(spark: SparkSession, rows: Rows) -> DataFrame:
    import pyarrow as pa

    return spark.createDataFrame(pa.Table.from_batches([rows_of(rows)]))


def all_rows() -> Rows:
    """Every entry, in the order of time."""
    found = [dict(row) for story in (*the_flows(), the_schedules()) for row in story.rows]
    return sorted(found, key=lambda row: row["at_ms"])


def of_spark(tables: Tables, view: str, **limits: Any) -> Rows:
    """The rows of a view in Spark."""
    rows = plain(tables.read(view, **limits))
    return [{name: _bare(value) for name, value in row.items()} for row in rows]


def of_duckdb(lake: Lake, view: str, **limits: Any) -> Rows:
    """The rows of a view in DuckDB, as `of_spark` returns them."""
    with LakeReader(lake, **limits) as reader:
        found = reader.sql(f"SELECT * FROM {view}").dicts()
    rows = [{name: _bare(row[public_name(name)]) for name in VIEWED[view]} for row in found]
    return [json.loads(text) for text in sorted(json.dumps(row, sort_keys=True) for row in rows)]


def _bare(value: Any) -> Any:
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, float):  # the last digit of an interpolated percentile differs
        return round(value, 9)
    return value.isoformat() if isinstance(value, date) else value


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """A lake of the flows and schedules."""
    tables = Tables(spark, Lake(tmp_path_factory.mktemp("views") / "lake"))
    silver = build.tables(bronze_of(spark, all_rows()), persist=False)
    files = [
        file
        for name in ("flows", "jobs", "attempts", "firings")
        for file in tables.write(silver[name].filter("day IS NOT NULL"), name)
    ]
    tables.lake.publish(Change("build", add=files))
    return tables


@pytest.fixture(scope="module")
def built(spark: SparkSession, made: Tables) -> dict[str, Rows]:
    silver = build.tables(bronze_of(spark, all_rows()), persist=False)
    found = {name: plain(silver[name]) for name in ("flows", "firings")}
    return found | {name: of_duckdb(made.lake, name) for name in ("critical_paths", "schedules")}


@pytest.mark.parametrize("view", ["critical_paths", "schedules"])
def test_spark_and_duckdb_compute_equal_views(made: Tables, built: dict[str, Rows], view: str) -> None:
    assert of_spark(made, view) == built[view]


@pytest.mark.parametrize("table", ["flows", "firings", "critical_paths", "schedules"])
def test_golden(built: dict[str, Rows], table: str) -> None:
    """The tables as they were after the last review; OXCART_GOLDEN=1 rewrites them."""
    path = GOLDEN / f"{table}.jsonl"
    text = "".join(json.dumps(row, sort_keys=True, ensure_ascii=False) + "\n" for row in built[table])
    if os.environ.get("OXCART_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_a_child_knows_its_parent_and_what_its_failure_means(built: dict[str, Rows]) -> None:
    found = {
        job: (row["parent_queue"], row["parent_id"], row["on_failure"], row["state"])
        for job, (row,) in by_job(built["flows"]).items()
    }
    assert found == {
        "a": ("top", "sum", "fail", "completed"),
        "b": ("top", "sum", "wait", "completed"),
        "c": ("part", "b", "ignore", "completed"),
        "d": ("top", "stays", "wait", "completed"),
        "quick": ("top", "hasty", "continue", "failed"),
        "slow": ("top", "hasty", "wait", "completed"),
    }, "Node's wire does not have it"


def steps(rows: Iterable[dict[str, Any]], flow: str) -> list[tuple[str, int]]:
    mine = sorted((row for row in rows if row["flow_id"] == flow), key=lambda row: row["step"])
    return [(row["job_id"], row["took_ms"]) for row in mine]


def test_the_critical_path_is_what_the_tree_took_its_time_for(built: dict[str, Rows]) -> None:
    paths = built["critical_paths"]
    found = steps(paths, "sum")
    assert [job for job, _ in found] == ["c", "b", "sum"], "`a` ended before `b`, and delayed no job"
    (total,) = {row["total_ms"] for row in paths if row["flow_id"] == "sum"}
    assert sum(took for _, took in found) == total
    assert sum(row["share"] for row in paths if row["flow_id"] == "sum") == pytest.approx(1)
    assert [job for job, _ in steps(paths, "hasty")] == ["quick", "hasty"], "`slow` ended when it already ran"
    assert {row["flow_id"] for row in paths} == {"sum", "hasty"}, "of `stays` the end is not known"


def test_runs_are_as_late_as_they_were(built: dict[str, Rows]) -> None:
    late = {row["job_id"].partition(":")[2]: row["late_ms"] for row in built["firings"]}
    assert late == {
        f"beat:{TEN + MINUTE}": 5,
        f"beat:{TEN + 2 * MINUTE}": 10,
        f"beat:{TEN + 5 * MINUTE}": 15,
        f"hourly:{TEN + 60 * MINUTE}": 20,
        f"hourly:{TEN + 240 * MINUTE}": 30,
        f"hourly:{TEN + 300 * MINUTE}": None,
        f"node:{TEN + 61 * MINUTE}": 3,
        f"beat:{TEN + 301 * MINUTE}": None,
    }


def test_expected_and_actual_runs(built: dict[str, Rows]) -> None:
    found = {
        row["schedule"]: tuple(row[name] for name in ("expected", "started", "missed", "failed", "late_max"))
        for row in built["schedules"]
    }
    assert found == {
        "beat": (5, 3, 2, 0, 15),
        "hourly": (4, 2, 2, 1, 30),
        "node": (None, 1, None, 0, 3),
    }, "the rule of a schedule that Node runs alone is not on the wire"
