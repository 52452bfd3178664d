"""Spark computes the views as DuckDB does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from oxcart.history.reader import LakeReader
from oxcart.spark.lake.columns import VIEWED, public
from oxcart.spark.lake.tables import Tables
from oxcart.spark.views.objectives import FILE
from tests.history.histories import HOUR, MINUTE, child, firing, job, metric, timing, weeks
from tests.history.lakes import MIDNIGHT, make_lake
from tests.spark.test_query import in_utc, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OBJECTIVES = """
[objectives.sent]
queue = "mail"
success = 0.99
[objectives.quick]
queue = "mail"
name = "send"
run = "100ms"
share = 0.9
[objectives.prompt]
queue = "mail"
wait = "5s"
share = 0.95
"""


def test_spark_and_duckdb_compute_equal_views(spark: SparkSession, tmp_path: Path) -> None:
    timings = [
        timing(
            -3 * HOUR, completed=200, run_total=90_000, runs={90: 200}, waits={0: 150, 5000: 50}, version="1"
        ),
        timing(-2 * HOUR, completed=100, failed=50, run_total=900_000, runs={300: 150}, version="2", unrun=2),
        timing(-2 * HOUR, completed=30, run_total=90_000, queue="video", lane="all;c=gpu", retries=4),
    ]
    usual = {"arrivals": 100, "completed": 100, "wait_p90": 5.0, "run_p90": 90.0}
    bad = {"arrivals": 900, "completed": 60, "failed": 60, "wait_p90": 900.0, "run_p90": 900.0}
    metrics = [*weeks([*[usual] * 6, bad], -2 * HOUR), metric(-3 * HOUR, "hour", arrivals=200)]
    metrics += [metric(-2 * HOUR, "hour", arrivals=50, queue="video", lane="all;c=gpu")]
    spent = {"name": "send", "tenant": "acme", "attempts": 2, "run_total": 1500, "wasted_total": 20}
    lake = make_lake(
        tmp_path / "lake",
        timings=timings,
        queue_metrics=metrics,
        spending=[spent, spent],
        jobs=[job("sum", 0, 900, 1000, queue="top")],
        flows=[child("slow", 0, 100, 800, queue="mail@all;c=gpu")],
        attempts=[{"queue": "top", "job_id": "sum", "first_id": "sum-0", "started_ms": MIDNIGHT + 900}],
        firings=[firing("beat", minute * MINUTE, every_ms=MINUTE) for minute in (1, 4)],
    )
    (lake.root / FILE).write_text(OBJECTIVES, encoding="utf-8")
    tables = Tables(spark, lake)
    for view in VIEWED:
        text = f"SELECT * FROM {view}"
        tables.register(text=text)
        known = spark.sql(text)
        with LakeReader(lake) as reader:
            found = reader.sql(text)
            got = rows(found.columns, found)
        assert sorted(got) == sorted(rows(known.columns, map(in_utc, known.collect()))), view
        assert got, view
        assert list(known.columns) == list(found.columns), view
        assert {field.name: field.dataType.simpleString() for field in known.schema} == dict(public(view)), (
            view
        )
