"""Figures per queue and job name, by minute, hour and day.

Percentiles are exact, of the attempts that ended in the window; none is made of others. The row named ``*``
is the whole queue. Backlog is a sample of the queue's lengths, the last one in the window, because a sum of
arrivals and ends would drift with every gap; the wire does not tell it by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from oxcart.model.failure import Category
from oxcart.spark.transforms.jobs import FAILED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: The windows and their length in ms.
WINDOWS = {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
ALL = "*"
_SHARES = (0.5, 0.9, 0.99)
_NAMES = ("p50", "p90", "p99")
_UNTOLD = "untold"


def queue_metrics(bronze: DataFrame, attempts: DataFrame, counts: DataFrame) -> DataFrame:
    """The figures.

    Args:
        bronze: For arrivals.
        attempts: For everything that attempts tell; those that still run are left out.
        counts: For the backlog.
    """
    key = ["queue", "window", "start_ms", "name"]
    added = bronze.filter((fn.col("kind") == "entry") & (fn.col("event") == "added"))
    arrivals = (
        _windowed(added.select("queue", "name", "at_ms"))
        .groupBy(*key)
        .agg(fn.count(fn.lit(1)).alias("arrivals"))
    )
    ended = attempts.filter(fn.col("ended_ms").isNotNull()).withColumn("at_ms", fn.col("ended_ms"))
    tried = _windowed(
        ended.select("queue", "name", "at_ms", "outcome", "category", "wait_ms", "run_ms")
    ).groupBy(*key)
    outcome, category = fn.col("outcome"), fn.coalesce(fn.col("category"), fn.lit(_UNTOLD))
    failed = outcome.isin(*FAILED)
    sums = tried.agg(
        _count(outcome == "completed").alias("completed"),
        _count(outcome == "failed").alias("failed"),
        _count(outcome == "retried").alias("retries"),
        _count(outcome == "stalled").alias("stalls"),
        *(
            _count(failed & (category == word)).alias(f"failures_{word}")
            for word in (*(str(category) for category in Category), _UNTOLD)
        ),
        fn.percentile("wait_ms", fn.array(*map(fn.lit, _SHARES))).alias("_wait"),
        fn.percentile("run_ms", fn.array(*map(fn.lit, _SHARES))).alias("_run"),
        fn.max("wait_ms").alias("wait_max"),
        fn.max("run_ms").alias("run_max"),
    )
    ready = fn.col("wait") + fn.col("paused") + fn.col("prioritized")
    waiting = counts.select(
        "queue",
        "at_ms",
        fn.struct("at_ms", ready.alias("ready"), "active", "delayed").alias("_sample"),
        fn.lit(ALL).alias("name"),
    )
    backlog = _windowed(waiting, names=False).groupBy(*key).agg(fn.max("_sample").alias("_sample"))
    whole = arrivals.join(sums, key, "full").join(backlog, key, "full")
    numbers = [
        name for name in sums.columns if name not in key and not name.startswith("_") and "_max" not in name
    ]
    return whole.select(
        fn.to_date(fn.timestamp_millis("start_ms")).alias("day"),
        *key,
        *(fn.coalesce(name, fn.lit(0)).alias(name) for name in ("arrivals", *numbers)),
        fn.col("_sample.ready").alias("backlog_ready"),
        fn.col("_sample.active").alias("backlog_active"),
        fn.col("_sample.delayed").alias("backlog_delayed"),
        *(
            column
            for kind in ("wait", "run")
            for column in (
                *(fn.col(f"_{kind}")[at].alias(f"{kind}_{name}") for at, name in enumerate(_NAMES)),
                fn.col(f"{kind}_max"),
            )
        ),
    )


def _windowed(rows: DataFrame, *, names: bool = True) -> DataFrame:
    """Each row once per window, and once more under the name that stands for all."""
    windows = fn.array(
        *(
            fn.struct(
                fn.lit(name).alias("window"),
                (fn.col("at_ms") - fn.col("at_ms") % fn.lit(length)).alias("start_ms"),
            )
            for name, length in WINDOWS.items()
        )
    )
    spread = rows.withColumn("_window", fn.explode(windows))
    if names:
        # A name that is not known is no name: its rows count for the queue alone.
        both = fn.when(fn.col("name").isNull(), fn.array(fn.lit(ALL))).otherwise(
            fn.array(fn.lit(ALL), "name")
        )
        spread = spread.withColumn("name", fn.explode(both))
    return spread.select("*", "_window.window", "_window.start_ms").drop("_window")


def _count(condition: Column) -> Column:
    return fn.sum(fn.when(condition, 1).otherwise(0))
