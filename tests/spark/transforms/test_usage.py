"""Sums of attempts: by minute, name and version, and by day, tenant and tag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from oxcart.broker.port.values import LIFETIME_OVER
from tests.spark.story import MIDNIGHT, Story
from tests.spark.sums import added_up

pytest.importorskip("pyspark")

from pyspark.sql import functions as fn

from oxcart.spark.transforms import build
from oxcart.spark.transforms.usage import bucket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON = MIDNIGHT + 43_200_000


def test_a_bucket_has_two_digits(spark: SparkSession) -> None:
    given = [0, 7, 99, 100, 109, 110, 1499, 1500, 29_999, 30_000, 3_600_000, -5]
    found = spark.createDataFrame([(one,) for one in given], "ms bigint").select(bucket(fn.col("ms")))
    assert [row[0] for row in found.collect()] == [
        *(0, 7, 99, 100, 100, 110, 1400, 1500, 29_000, 30_000, 3_600_000, 0)
    ]


def story() -> Story:
    """Two versions, two tenants, a tag, a retry, and a job that nobody ran."""
    s = Story(at_ms=NOON)

    def job(name: str, event: str, outcome: str, run: int, **facts: Any) -> None:
        s.event("added", name, name="send")
        s.event("waiting", name)
        s.event("active", name, prev="waiting", after=200)
        end = s.event(event, name, prev="active", after=run)
        s.record(end, outcome, name, began=s.now - run, ended=s.now, worker="w", **facts)

    job("a", "completed", "completed", 1500, version="1", key="acme", tags='{"plan": "pro"}')
    job(
        "b",
        "waiting",
        "retried",
        400,
        version="1",
        tags='{"tenant": "else"}',
        category="temporary",
        reason="no",
    )
    s.event("active", "b", prev="waiting", after=7)
    end = s.event("completed", "b", prev="active", after=30)
    s.record(end, "completed", "b", began=s.now - 30, ended=s.now, version="2")  # its tags stay known
    job("c", "failed", "failed", 50, version="2", category="cancelled", reason="not wanted")
    s.event("added", "d", name="send")
    s.event("waiting", "d")
    s.event("failed", "d", prev="waiting", reason=LIFETIME_OVER)
    s.event("active", "e", prev="waiting")  # still runs
    return s


def test_sums_are_those_of_the_attempts_whatever_the_spans(spark: SparkSession) -> None:
    bronze = story().bronze(spark).cache()
    made = build.tables(bronze, persist=False)
    found = added_up("timings", (row.asDict(True) for row in made["timings"].collect()))
    by_version = {row["version"]: row for row in found}
    one, two, nobody = by_version["1"], by_version["2"], by_version[None]
    assert (one["attempts"], one["completed"], one["retries"], one["run_total"]) == (2, 1, 1, 1900)
    assert one["waits"] == [{"ms": 200, "times": 2}]
    assert one["runs"] == [{"ms": 400, "times": 1}, {"ms": 1500, "times": 1}]
    assert (two["attempts"], two["completed"], two["failed"], two["cancelled"]) == (2, 1, 0, 1)
    assert (nobody["attempts"], nobody["unrun"], nobody["waits"]) == (0, 1, [])
    assert {(row["start_ms"], row["name"]) for row in found} == {(NOON, "send")}

    costs = {
        (row["tenant"], row["tag"], row["value"]): (row["attempts"], row["run_total"], row["wasted_total"])
        for row in made["spending"].collect()
    }
    assert costs == {
        ("acme", None, None): (1, 1500, 0),
        ("acme", "plan", "pro"): (1, 1500, 0),
        ("else", None, None): (2, 430, 400),
        ("else", "tenant", "else"): (2, 430, 400),
        (None, None, None): (1, 50, 50),
    }

    split = build.tables(bronze, through=fn.lit(NOON + 2000).cast("bigint"), persist=False)
    parts = [row.asDict(True) for row in split["timings"].collect()]
    assert len(parts) == 4  # the first version has a row of settled attempts, and one of later ones
    assert sorted(map(str, added_up("timings", parts))) == sorted(map(str, found))
