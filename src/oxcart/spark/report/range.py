"""Figures of several days: sums of the days' rows, and percentiles of their attempts.

A percentile of a range is computed from the attempts themselves: no mean of the days' percentiles is shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from oxcart.spark.transforms.metrics import ALL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SUMS = ("arrivals", "completed", "failed", "retries", "stalls")


def queue_rows(days: DataFrame, attempts: DataFrame) -> DataFrame:
    """Returns one row per queue and job name (``*`` is all), with the columns that a report shows.

    Args:
        days: The rows of ``queue_metrics`` whose window is a day.
        attempts: The attempts of these days.
    """
    known = fn.col("backlog_ready").isNotNull()
    sums = days.groupBy("queue", "name").agg(
        *(fn.sum(name).alias(name) for name in _SUMS),
        fn.max_by("backlog_ready", fn.when(known, fn.col("start_ms"))).alias("backlog_ready"),
    )
    both = fn.when(fn.col("name").isNull(), fn.array(fn.lit(ALL))).otherwise(fn.array(fn.lit(ALL), "name"))
    shares = fn.array(fn.lit(0.5), fn.lit(0.99))
    spent = (
        attempts.filter("ended_ms is not null")
        .select("queue", fn.explode(both).alias("name"), "wait_ms", "run_ms")
        .groupBy("queue", "name")
        .agg(fn.percentile("wait_ms", shares).alias("_wait"), fn.percentile("run_ms", shares).alias("_run"))
    )
    return sums.join(spent, ["queue", "name"], "left").select(
        "queue",
        "name",
        *_SUMS,
        "backlog_ready",
        *(
            fn.col(f"_{kind}")[at].alias(f"{kind}_{word}")
            for kind in ("wait", "run")
            for at, word in enumerate(("p50", "p99"))
        ),
    )


def failure_rows(failures: DataFrame) -> DataFrame:
    """Returns one row per queue and cluster of failures."""
    return failures.groupBy("queue", "cluster").agg(
        fn.max_by("message", "last_ms").alias("message"),
        fn.sum("count").alias("count"),
        fn.sum("fatal").alias("fatal"),
        fn.min("first_ms").alias("first_ms"),
        fn.max("last_ms").alias("last_ms"),
    )


def schedule_rows(schedules: DataFrame) -> DataFrame:
    """Returns one row per schedule and rule. Percentiles of lateness are null: the days' do not add up."""
    return schedules.groupBy("queue", "schedule", "cron", "every_ms").agg(
        *(fn.sum(name).alias(name) for name in ("expected", "started", "missed", "failed")),
        fn.max("late_max").alias("late_max"),
        fn.min("first_ms").alias("first_ms"),
    )
