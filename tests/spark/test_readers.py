"""DuckDB, Polars, pandas and Spark give equal answers to twenty questions while the lake is being written."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from oxcart.history.reader import LakeReader
from oxcart.spark.lake.tables import Tables
from oxcart.spark.lake.upkeep import compact
from oxcart.spark.lake.versions import Change, Lake, Version
from tests.servers import wait_until

deltalake = pytest.importorskip("deltalake")
polars = pytest.importorskip("polars")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The tables that are rewritten while they are read.
WRITTEN = ("events", "jobs", "attempts", "transitions", "queue_metrics", "failures")


@dataclass(frozen=True)
class Question:
    """Rows of a table by some columns: how many, and the sum of a column where one is given.

    Attributes:
        table: The table.
        by: The columns.
        total: A column of numbers; nulls count as 0.
        where: A column and the value that its rows have, or None for any value but null.
    """

    table: str
    by: tuple[str, ...] = ()
    total: str = ""
    where: tuple[str, str | None] | None = None

    @property
    def text(self) -> str:
        """The question in SQL."""
        columns = [*self.by, "count(*) AS n"]
        if self.total:
            columns.append(f"sum(coalesce({self.total}, 0)) AS total")
        text = f"SELECT {', '.join(columns)} FROM {self.table}"
        if self.where:
            column, value = self.where
            text += f" WHERE {column} IS NOT NULL" if value is None else f" WHERE {column} = '{value}'"
        return f"{text} GROUP BY {', '.join(self.by)}" if self.by else text


QUESTIONS = (
    Question("jobs"),
    Question("jobs", ("state",)),
    Question("jobs", ("name", "state"), "attempts"),
    Question("jobs", ("queue", "lane"), "run_ms"),
    Question("jobs", ("category",), "retries", ("category", None)),
    Question("jobs", ("born",), "wait_ms", ("state", "completed")),
    Question("jobs", ("ended_at",), "", ("ended_at", None)),
    Question("attempts", ("outcome",), "run_ms"),
    Question("attempts", ("worker", "outcome"), "wait_ms"),
    Question("attempts", ("name",), "attempt", ("told_by", "record")),
    Question("attempts", ("category", "code")),
    Question("attempts", ("started_at", "job_id"), "", ("worker", None)),
    Question("transitions", ("from_state", "to_state")),
    Question("transitions", ("legal",), "life"),
    Question("transitions", ("event", "occurred_at")),
    Question("events", ("kind", "event")),
    Question("events", ("queue", "stream"), "lost"),
    Question("queue_metrics", ("window", "name"), "arrivals"),
    Question("queue_metrics", ("start_at",), "completed", ("window", "hour")),
    Question("failures", ("message",), "count"),
)


class Writer:
    """Adds files to all tables, takes them back and joins files, until `stop`.

    Args:
        lake: The lake.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._done = threading.Event()
        self._error: Exception | None = None
        self.passes = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join(60)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._done.is_set():
                self._write()
                self.passes += 1
        except Exception as error:
            self._error = error

    def _write(self) -> None:
        lake, made = self._lake, []
        for table in WRITTEN:
            old = next(file for file in lake.head().of(table) if not file.pending)
            copy = lake.staging() / "x.parquet"
            shutil.copy(lake.paths([old])[0], copy)
            made.append(lake.take(copy, table, old.day))
        lake.publish(Change("double", add=made))
        if self.passes % 3 == 2:
            compact(lake)
        else:
            lake.publish(Change("back", remove=frozenset(file.path for file in made)))


@pytest.fixture
def lake(asked: Lake, tmp_path: Path) -> Lake:
    """A copy of the lake that many tests read, for writing."""
    shutil.copytree(asked.root, tmp_path / "lake")
    return Lake(tmp_path / "lake")


def test_four_readers_agree_while_the_lake_is_written(spark: SparkSession, lake: Lake) -> None:
    writer = Writer(Lake(lake.root))
    versions: set[int] = set()
    try:
        for question in QUESTIONS:
            version = lake.head()
            versions.add(version.number)
            passes = writer.passes
            answers = {
                "DuckDB": in_duckdb(lake, version, question),
                "Spark": in_spark(spark, lake, version, question),
                "Polars": in_polars(lake, version, question),
                "pandas": in_pandas(lake, version, question),
            }
            for name, found in answers.items():
                assert found == answers["DuckDB"], f"{name}: {question.text}"
            assert answers["DuckDB"], f"rows: {question.text}"
            wait_until(lambda passes=passes: writer.passes > passes, "the lake is written", 120)  # type: ignore[misc]
    finally:
        writer.stop()
    assert len(versions) == len(QUESTIONS)


def in_duckdb(lake: Lake, version: Version, question: Question) -> Counter[str]:
    text = question.text.replace("window", '"window"')
    with LakeReader(lake, version) as reader:
        return texts(list(reader.sql(text)))


def in_spark(spark: SparkSession, lake: Lake, version: Version, question: Question) -> Counter[str]:
    Tables(spark, lake).register(version, question.text)
    return texts(spark.sql(question.text).collect())


def in_polars(lake: Lake, version: Version, question: Question) -> Counter[str]:
    frame = polars.scan_delta(str(lake.root / question.table), version=version.tables[question.table])
    text = question.text.replace("window", '"window"')
    return texts(polars.SQLContext({question.table: frame}).execute(text).collect().rows())


def in_pandas(lake: Lake, version: Version, question: Question) -> Counter[str]:
    table = deltalake.DeltaTable(lake.root / question.table, version=version.tables[question.table])
    rows = table.to_pandas()
    if question.where:
        column, value = question.where
        rows = rows[rows[column].notna() if value is None else rows[column] == value]
    total = rows[question.total].fillna(0) if question.total else 0
    rows = rows.assign(n=1, total=total)
    figures = ["n", "total"] if question.total else ["n"]
    if not question.by:
        return texts([tuple(rows[figures].sum())])
    found = rows.groupby(list(question.by), dropna=False)[figures].sum().reset_index()
    return texts(found.itertuples(index=False))


def texts(rows: Iterable[Iterable[Any]]) -> Counter[str]:
    """Rows as texts, each with how often it occurs."""
    return Counter("|".join(map(plain, row)) for row in rows)


def plain(value: Any) -> str:
    """A value as text: numbers and times of every reader alike."""
    if value is None or value != value or str(value) in ("NaT", "<NA>", "nan"):
        return "null"
    if hasattr(value, "timestamp"):
        return f"at {value.timestamp():.3f}"
    if isinstance(value, bool) or str(value) in ("True", "False"):
        return str(bool(value)).lower()
    if isinstance(value, str):
        return value
    return f"{float(value):.3f}"
