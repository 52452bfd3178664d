"""Sums of attempts that later questions add up: by minute, name and version, and by day, tenant and tag.

Each row has the sums of new attempts alone. Rows of one key add up, whatever spans they come from, so a span
neither reads nor replaces settled rows of earlier ones, and needs no tally. `oxcart.spark.lake.views` sums
them when a query names ``slo``, ``capacity``, ``changes`` or ``costs``.

Durations are counted by buckets of two decimal digits: 1, 2, …, 99, 100, 110, …, 990, 1000, 1100 ms and so
on. So a limit of at most two digits (5 s, 1.5 s, 30 min) is the edge of a bucket, and counts below it are
exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from oxcart.spark.lake.columns import WINDOWS
from oxcart.spark.transforms.days import day_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Decimal digits of a duration that count.
DIGITS = 2
_COUNTS = ("attempts", "completed", "failed", "unrun", "cancelled", "retries", "stalls", "run_total")
#: Formal states in which a job has failed for good.
_DEAD = ("failed", "dead_letter")


def bucket(ms: Column) -> Column:
    """Returns the lower edge of a duration's bucket."""
    positive = fn.greatest(ms, fn.lit(0))
    step = fn.pow(fn.lit(10), fn.greatest(fn.length(positive.cast("string")) - fn.lit(DIGITS), fn.lit(0)))
    return positive - positive % step.cast("bigint")


def timings(generations: DataFrame, attempts: DataFrame, through: Column | None = None) -> DataFrame:
    """Returns sums of ended attempts by minute, job name and version of the worker's program.

    Args:
        generations: For jobs that fail without an attempt: out of their lifetime, or by a dependency.
        attempts: New attempts; running ones are left out.
        through: Later rows have sums of their own, because the next span has them again. None for none.

    Returns:
        ``failed`` counts jobs that an attempt failed for good, ``unrun`` those that failed without one, and
        ``cancelled`` those that a caller ended. ``waits`` and ``runs`` count durations by bucket.
    """
    outcome, cancelled = fn.col("outcome"), fn.col("category").eqNullSafe("cancelled")
    over = outcome == "failed"
    counted = {
        "attempts": fn.lit(True),
        "completed": outcome == "completed",
        "failed": over & ~cancelled,
        "unrun": fn.lit(False),
        "cancelled": over & cancelled,
        "retries": outcome == "retried",
        "stalls": outcome == "stalled",
    }
    tried = attempts.filter(fn.col("ended_ms").isNotNull()).select(
        "queue",
        "name",
        "version",
        "ended_ms",
        *(_one(condition).alias(name) for name, condition in counted.items()),
        fn.coalesce("run_ms", fn.lit(0)).alias("run_total"),
        bucket(fn.col("wait_ms")).alias("_wait"),
        bucket(fn.col("run_ms")).alias("_run"),
    )
    idle = (fn.col("event") == "failed") & (fn.col("prev") != "active") & fn.col("state").isin(*_DEAD)
    unrun = generations.filter(idle).select(
        "queue",
        fn.coalesce("life_name", "r.name").alias("name"),
        fn.lit(None).cast("string").alias("version"),
        fn.col("at_ms").alias("ended_ms"),
        *(fn.lit(int(name == "unrun")).cast("bigint").alias(name) for name in _COUNTS),
        *(fn.lit(None).cast("bigint").alias(name) for name in ("_wait", "_run")),
    )
    rows = tried.unionByName(unrun).withColumn("_later", _later(through))
    # The counts of a row go with one of its durations, so that one sum makes counts and buckets.
    measures = fn.array(
        fn.struct(fn.lit("wait").alias("kind"), fn.col("_wait").alias("ms"), fn.lit(1).alias("_once")),
        fn.struct(fn.lit("run").alias("kind"), fn.col("_run").alias("ms"), fn.lit(0).alias("_once")),
    )
    key = ("queue", "start_ms", "name", "version", "_later")
    minute = fn.col("ended_ms") - fn.col("ended_ms") % fn.lit(WINDOWS["minute"])
    spread = rows.withColumn("start_ms", minute).select(*key, *_COUNTS, "ended_ms", fn.inline(measures))
    buckets = spread.groupBy(*key, "kind", "ms").agg(
        *(fn.sum(fn.col(name) * fn.col("_once")).alias(name) for name in _COUNTS),
        fn.count(fn.lit(1)).alias("times"),
        fn.max("ended_ms").alias("last_ms"),
    )
    summed = buckets.groupBy(*key).agg(
        *(fn.sum(name).alias(name) for name in _COUNTS),
        _buckets("wait").alias("waits"),
        _buckets("run").alias("runs"),
        fn.max("last_ms").alias("last_ms"),
    )
    return summed.select(day_of("start_ms").alias("day"), *key[:-1], *_COUNTS, "waits", "runs", "last_ms")


def spending(attempts: DataFrame, through: Column | None = None) -> DataFrame:
    """Returns the time that workers spent, by day, job name, tenant and tag.

    An attempt counts once in the row without a tag, and once more for each of its tags.

    Args:
        attempts: New attempts; running ones are left out.
        through: As in `timings`.

    Returns:
        ``run_total`` is the time in ms, ``wasted_total`` that of attempts that did not complete their job.
    """
    pair = "struct<key:string,value:string>"
    tags = fn.map_entries(fn.coalesce("tags", fn.create_map().cast("map<string,string>")))
    labels = fn.concat(fn.array(fn.lit(None).cast(pair)), tags)
    run = fn.coalesce("run_ms", fn.lit(0))
    rows = attempts.filter(fn.col("ended_ms").isNotNull()).select(
        day_of("ended_ms").alias("day"),
        "queue",
        "name",
        "tenant",
        "ended_ms",
        run.alias("run_total"),
        fn.when(fn.col("outcome") == "completed", 0).otherwise(run).alias("wasted_total"),
        _later(through).alias("_later"),
        fn.explode(labels).alias("_label"),
    )
    key = ("day", "queue", "name", "tenant", "tag", "value")
    labelled = rows.withColumns({"tag": fn.col("_label.key"), "value": fn.col("_label.value")})
    summed = labelled.groupBy(*key, "_later").agg(
        fn.count(fn.lit(1)).alias("attempts"),
        fn.sum("run_total").alias("run_total"),
        fn.sum("wasted_total").alias("wasted_total"),
        fn.max("ended_ms").alias("last_ms"),
    )
    return summed.drop("_later")


def _later(through: Column | None) -> Column:
    """Whether the next span has the row again."""
    return fn.lit(False) if through is None else fn.col("ended_ms") > through


def _buckets(kind: str) -> Column:
    known = (fn.col("kind") == kind) & fn.col("ms").isNotNull()
    return fn.sort_array(fn.collect_list(fn.when(known, fn.struct("ms", "times"))))


def _one(condition: Column) -> Column:
    return fn.when(condition, 1).otherwise(0).cast("bigint")
