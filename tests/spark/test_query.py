"""DuckDB and Spark give equal answers, and the command shows them in every form."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from pyspark.sql import Row

from oxcart.history.reader import LakeReader
from oxcart.spark import session
from oxcart.spark.lake.columns import DURATIONS, INSTANTS, STORED, VIEWED
from oxcart.spark.lake.tables import TABLES, Tables
from oxcart.spark.lake.versions import Lake
from oxcart.spark.read.entries import SCHEMA
from oxcart.spark.transforms import build
from oxcart.spark.transforms.lanes import split_lanes
from tests.cli.conftest import Commands, Ended

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Questions in words that both dialects know.
QUESTIONS = (
    "SELECT * FROM jobs",
    "SELECT * FROM attempts",
    "SELECT * FROM transitions",
    "SELECT * FROM events",
    "SELECT * FROM open",
    "SELECT * FROM quarantine",
    "SELECT * FROM gaps",
    "SELECT * FROM counts",
    "SELECT * FROM flows",
    "SELECT * FROM firings",
    "SELECT * FROM queue_metrics",
    "SELECT * FROM failures",
    "SELECT * FROM timings",
    "SELECT * FROM spending",
    "SELECT * FROM costs",
    "SELECT * FROM critical_paths",
    "SELECT * FROM schedules",
    "SELECT flow_name, name, avg(share) AS share FROM critical_paths GROUP BY 1, 2",
    "SELECT count(*) AS n FROM gaps",
    "SELECT name, state, count(*) AS n FROM jobs GROUP BY name, state ORDER BY n DESC, name, state",
    (
        "SELECT queue, lane, name, category FROM jobs WHERE state IN ('dead_letter', 'failed') "
        "ORDER BY 1, 2, 3, 4"
    ),
    "SELECT job_id, tags['tenant'] AS tenant FROM jobs WHERE correlation_id = 'order-7' ORDER BY job_id",
    "SELECT name, sum(run_ms) AS ran, avg(wait_ms) AS waited FROM attempts GROUP BY name",
    "SELECT category, count(*) AS n FROM attempts GROUP BY category ORDER BY category",
    "SELECT category, count(*) AS n FROM attempts GROUP BY category ORDER BY category DESC",
    (
        "SELECT j.name, a.attempt, a.outcome FROM jobs j JOIN attempts a "
        "ON j.queue = a.queue AND j.job_id = a.job_id AND j.first_id = a.first_id ORDER BY 1, 2, 3"
    ),
    (
        "WITH last AS (SELECT job_id, max(occurred_at) AS last_at FROM transitions GROUP BY job_id) "
        "SELECT t.to_state, count(*) AS n FROM transitions t JOIN last l "
        "ON t.job_id = l.job_id AND t.occurred_at = l.last_at GROUP BY t.to_state"
    ),
    (
        "SELECT day, queue, lane, arrivals, wait_p50, run_p99 FROM queue_metrics m "
        "WHERE m.window = 'day' AND name = '*'"
    ),
    "SELECT name, row_number() OVER (PARTITION BY name ORDER BY created_at, job_id) AS place FROM jobs",
    "SELECT from_state, to_state, legal, count(*) AS n FROM transitions GROUP BY 1, 2, 3",
    (
        "SELECT upper(name) AS word, length(job_id) AS long FROM jobs WHERE name LIKE '%e%' "
        "AND ended_at IS NOT NULL"
    ),
)


def rows(columns: Sequence[str], found: Iterable[Sequence[Any]]) -> list[str]:
    """Rows as text, with columns by name: types of numbers may differ, values may not."""
    named = ({name: _plain(value) for name, value in zip(columns, row, strict=True)} for row in found)
    return [json.dumps(row, default=str, sort_keys=True) for row in named]


def in_utc(row: Sequence[Any]) -> list[Any]:
    """A row of Spark, whose times are in this machine's zone, in UTC."""
    return [value.astimezone(UTC) if isinstance(value, datetime) else value for value in row]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted(value.items())
    if isinstance(value, list):
        return [_plain(one.asDict() if isinstance(one, Row) else one) for one in value]
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, datetime):  # Spark's are in this machine's zone
        return value.isoformat()
    return round(float(value), 9) if isinstance(value, int | float) and not isinstance(value, bool) else value


@pytest.mark.parametrize("text", QUESTIONS)
def test_duckdb_answers_as_spark_does(spark: SparkSession, asked: Lake, text: str) -> None:
    Tables(spark, asked).register(text=text)
    known = spark.sql(text)
    wanted = rows(known.columns, map(in_utc, known.collect()))
    with LakeReader(asked) as reader:
        found = reader.sql(text)
        got = rows(found.columns, found)
    if text.rpartition("ORDER BY")[1] and "OVER" not in text:
        assert got == wanted
    else:
        assert sorted(got) == sorted(wanted)


def test_the_questions_find_rows(asked: Lake) -> None:
    """Equal answers of empty tables would show nothing."""
    with LakeReader(asked) as reader:
        empty = {table for table in STORED if not list(reader.sql(f"SELECT 1 FROM {table} LIMIT 1"))}
        lanes = list(reader.sql("SELECT DISTINCT lane FROM events ORDER BY 1"))
        tagged = list(reader.sql("SELECT job_id FROM jobs WHERE tags['tenant'] = 'acme'"))
    assert empty == set()
    assert lanes == [(None,), ("all;c=gpu",)]
    assert tagged == [("run",)]


def test_the_list_of_columns_is_that_of_the_transforms(spark: SparkSession, tmp_path: Path) -> None:
    """Spark reads files by the list: a column of a transform that the list lacks would be lost."""
    plans = build.tables(spark.createDataFrame([], SCHEMA), persist=False)
    assert set(STORED) == set(TABLES)
    for table, columns in STORED.items():
        rows = split_lanes(plans.get(table, spark.createDataFrame([], SCHEMA)), ())
        kinds = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
        assert kinds == dict(columns), table
        if table != "open":  # the transform has its columns in another order
            assert list(kinds) == list(columns), table


def test_every_column_in_ms_is_an_instant_or_a_duration() -> None:
    names = {name for columns in (*STORED.values(), *VIEWED.values()) for name in columns}
    assert {name for name in names if name.endswith("_ms")} == INSTANTS | DURATIONS
    assert {name for name in DURATIONS if name not in names} == set()


class TestCommand:
    @pytest.fixture
    def query(self, asked: Lake, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setenv("OXCART_LAKE", str(asked.root))
        monkeypatch.setattr(session, "SETTINGS", {**session.SETTINGS, **session.QUICK_SETTINGS})

        def run(*words: str, code: int = 0) -> Ended:
            done = Commands(None)("pipeline", "query", *words)
            assert done.code == code, done
            return done

        return run

    def test_text_shows_times_and_aligns_numbers(self, query: Any) -> None:
        lines = query("SELECT job_id, created_at, wait_ms FROM jobs WHERE job_id = 'plain'").out.split("\n")
        lines = [line for line in lines if line.strip()]
        assert lines[0].split() == ["job_id", "created_at", "wait_ms"]
        assert lines[-1].split() == ["plain", "2026-11-02", "10:00:00.001Z", "5"]
        assert query("SELECT * FROM jobs WHERE false").out == "no rows\n"

    def test_a_wide_table_folds_by_row(self, query: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        lines = query("SELECT * FROM jobs WHERE job_id IN ('plain', 'retried')").out.splitlines()
        assert [line for line in lines if line.startswith("row ")] == ["row 1", "row 2"]
        assert all(len(line) <= 80 for line in lines)
        assert any(line.split() == ["state", "completed"] for line in lines)

    @pytest.mark.parametrize("words", [(), ("--spark",)])
    def test_csv_json_and_parquet_hold_equal_values(
        self, query: Any, spark: SparkSession, tmp_path: Path, words: tuple[str, ...]
    ) -> None:
        from pyarrow import parquet

        text = (
            "SELECT job_id, day, created_at, reason, run_ms / 4 AS quarter FROM jobs ORDER BY job_id LIMIT 3"
        )
        found = query(text, "--json", *words).json
        assert found[0]["created_at"].startswith("2026-11-02T10:00:")
        assert found[0]["created_at"].endswith("Z")
        assert found[0]["day"] == "2026-11-02"
        read = list(csv.DictReader(io.StringIO(query(text, "--csv", *words).out)))
        assert [row["job_id"] for row in read] == [row["job_id"] for row in found]
        assert read[0]["reason"] == (found[0]["reason"] or "")
        file = tmp_path / "new" / "found.parquet"
        assert query(text, "--parquet", str(file), *words).out == f"written: {file}\n"
        times = [at and at.replace(tzinfo=UTC) for at in parquet.read_table(file)["created_at"].to_pylist()]
        assert times == [at and datetime.fromisoformat(at) for at in (row["created_at"] for row in found)]

    @pytest.mark.parametrize("words", [(), ("--spark",)])
    def test_an_unknown_table_is_one_line_that_names_the_tables(
        self, query: Any, spark: SparkSession, words: tuple[str, ...]
    ) -> None:
        line = query("SELECT * FROM jobz", *words, code=2).err
        assert line.startswith("oxcart: table must be one of anomalies, attempts, capacity, changes,")
        assert line.endswith("got 'jobz'\n")
        assert line.count("\n") == 1

    def test_a_computed_table_is_the_same_in_both_engines(self, query: Any, spark: SparkSession) -> None:
        asked = "SELECT queue, schedule, first_at FROM schedules ORDER BY 1, 2, 3"
        rows = query(asked, "--json").json
        assert rows
        assert query(asked, "--spark", "--json").json == rows

    def test_a_value_that_cannot_be_computed_is_one_line(self, query: Any, spark: SparkSession) -> None:
        for words in ((), ("--spark",)):
            line = query("SELECT CAST(name AS INT) FROM jobs WHERE name IS NOT NULL", *words, code=2).err
            assert line.count("\n") == 1, line

    def test_two_forms_exclude_each_other(self, query: Any) -> None:
        assert "exclude each other" in query("SELECT 1", "--csv", "--json", code=2).err
