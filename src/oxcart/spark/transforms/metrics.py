"""Figures per queue and job name, by minute, hour and day.

Minutes are made of rows; hours and days are sums of minutes, but for percentiles, which are exact and of the
attempts themselves: none is made of others. The row named ``*`` is the whole queue. Backlog is a sample of
the queue's lengths, the last one in the window, because a sum of arrivals and ends would drift with every
gap; the wire does not tell it by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from oxcart.model.failure import Category
from oxcart.spark.entries import ENTRY
from oxcart.spark.transforms.jobs import FAILED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: The windows and their length in ms.
WINDOWS = {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
ALL = "*"
_SHARES = (0.5, 0.9, 0.99)
_NAMES = ("p50", "p90", "p99")
_UNTOLD = "untold"
_KEY = ("queue", "window", "start_ms", "name")
_CATEGORIES = (*(str(category) for category in Category), _UNTOLD)
_NUMBERS = (
    *("arrivals", "completed", "failed", "retries", "stalls"),
    *(f"failures_{word}" for word in _CATEGORIES),
)
_BACKLOG = ("ready", "active", "delayed")


def queue_metrics(
    bronze: DataFrame,
    attempts: DataFrame,
    counts: DataFrame,
    *,
    before: DataFrame | None = None,
    since: Column | None = None,
) -> DataFrame:
    """The figures.

    Args:
        bronze: For arrivals.
        attempts: For everything that attempts tell; those that still run are left out.
        counts: For the backlog.
        before: Minutes that are known already, each of them over before ``since``.
        since: The time, perhaps another for each queue, at which unknown minutes begin. Attempts are of the
            whole day all the same; hours that were over by then are left out.
    """
    ended = attempts.filter(fn.col("ended_ms").isNotNull()).select(
        "queue", "name", fn.col("ended_ms").alias("at_ms"), "outcome", "category", "wait_ms", "run_ms"
    )
    added = bronze.filter((fn.col("kind") == ENTRY) & (fn.col("event") == "added"))
    first = fn.lit(0) if since is None else since
    minutes = _minutes(
        added.filter(fn.col("at_ms") >= first),
        ended.filter(fn.col("at_ms") >= first),
        counts.filter(fn.col("at_ms") >= first),
    )
    known = minutes if before is None else before.select(*minutes.columns).unionByName(minutes)
    hour = WINDOWS["hour"]
    spans = _shares(ended, first - first % fn.lit(hour))
    wider = _summed(known, first - first % fn.lit(hour)).join(spans, [*_KEY], "left")
    made = minutes.unionByName(wider.select(*minutes.columns))
    return made.select(fn.to_date(fn.timestamp_millis("start_ms")).alias("day"), *minutes.columns)


def _minutes(added: DataFrame, ended: DataFrame, counts: DataFrame) -> DataFrame:
    """One row per minute and name."""
    arrivals = (
        _named(_at(added.select("queue", "name", "at_ms"), "minute"))
        .groupBy(*_KEY)
        .agg(fn.count(fn.lit(1)).alias("arrivals"))
    )
    outcome, category = fn.col("outcome"), fn.coalesce(fn.col("category"), fn.lit(_UNTOLD))
    failed = outcome.isin(*FAILED)
    sums = (
        _named(_at(ended, "minute"))
        .groupBy(*_KEY)
        .agg(
            _count(outcome == "completed").alias("completed"),
            _count(outcome == "failed").alias("failed"),
            _count(outcome == "retried").alias("retries"),
            _count(outcome == "stalled").alias("stalls"),
            *(_count(failed & (category == word)).alias(f"failures_{word}") for word in _CATEGORIES),
            *(
                fn.percentile(f"{kind}_ms", fn.array(*map(fn.lit, _SHARES))).alias(f"_{kind}")
                for kind in ("wait", "run")
            ),
            fn.max("wait_ms").alias("wait_max"),
            fn.max("run_ms").alias("run_max"),
        )
    )
    ready = fn.col("wait") + fn.col("paused") + fn.col("prioritized")
    sample = fn.struct("at_ms", ready.alias("ready"), "active", "delayed")
    backlog = (
        _at(counts.withColumn("name", fn.lit(ALL)), "minute")
        .groupBy(*_KEY)
        .agg(fn.max(sample).alias("_sample"))
    )
    whole = arrivals.join(sums, [*_KEY], "full").join(backlog, [*_KEY], "full")
    return whole.select(
        *_KEY,
        *(fn.coalesce(name, fn.lit(0)).alias(name) for name in _NUMBERS),
        *(fn.col(f"_sample.{name}").alias(f"backlog_{name}") for name in _BACKLOG),
        *(
            column
            for kind in ("wait", "run")
            for column in (
                *(fn.col(f"_{kind}")[at].alias(f"{kind}_{name}") for at, name in enumerate(_NAMES)),
                fn.col(f"{kind}_max"),
            )
        ),
    )


def _summed(minutes: DataFrame, since: Column) -> DataFrame:
    """Hours and days of minutes, all but the percentiles; hours from a time on."""
    sample = fn.struct(fn.col("_minute"), *(f"backlog_{name}" for name in _BACKLOG))
    spread = _at(minutes.withColumnRenamed("start_ms", "_minute").drop("window"), "hour", "day", at="_minute")
    return (
        spread.filter((fn.col("window") == "day") | (fn.col("start_ms") >= since))
        .groupBy(*_KEY)
        .agg(
            *(fn.sum(name).alias(name) for name in _NUMBERS),
            fn.max(fn.when(fn.col("backlog_ready").isNotNull(), sample)).alias("_sample"),
            fn.max("wait_max").alias("wait_max"),
            fn.max("run_max").alias("run_max"),
        )
        .select("*", *(f"_sample.backlog_{name}" for name in _BACKLOG))
        .drop("_sample")
    )


def _shares(ended: DataFrame, since: Column) -> DataFrame:
    """The percentiles of hours and days. Equal durations are counted before they are spread."""
    measures = fn.array(
        *(
            fn.struct(fn.lit(kind).alias("kind"), fn.col(f"{kind}_ms").alias("value"))
            for kind in ("wait", "run")
        )
    )
    hourly = (
        _at(ended, "hour")
        .select("queue", "name", "start_ms", fn.inline(measures))
        .filter(fn.col("value").isNotNull())
        .groupBy("queue", "name", "start_ms", "kind", "value")
        .agg(fn.count(fn.lit(1)).alias("times"))
        .withColumnRenamed("start_ms", "_hour")
    )
    spread = _named(_at(hourly, "hour", "day", at="_hour")).filter(
        (fn.col("window") == "day") | (fn.col("start_ms") >= since)
    )
    found = spread.groupBy(*_KEY).agg(
        *(
            fn.percentile(
                fn.when(fn.col("kind") == kind, fn.col("value")),
                fn.array(*map(fn.lit, _SHARES)),
                fn.col("times"),
            ).alias(f"_{kind}")
            for kind in ("wait", "run")
        )
    )
    return found.select(
        *_KEY,
        *(
            fn.col(f"_{kind}")[at].alias(f"{kind}_{name}")
            for kind in ("wait", "run")
            for at, name in enumerate(_NAMES)
        ),
    )


def _at(rows: DataFrame, *windows: str, at: str = "at_ms") -> DataFrame:
    """Each row once per window."""
    time = fn.col(at)
    if len(windows) == 1:
        return rows.withColumns(
            {"window": fn.lit(windows[0]), "start_ms": time - time % fn.lit(WINDOWS[windows[0]])}
        )
    spans = fn.array(
        *(
            fn.struct(fn.lit(name).alias("window"), (time - time % fn.lit(WINDOWS[name])).alias("start_ms"))
            for name in windows
        )
    )
    return rows.select("*", fn.inline(spans))


def _named(rows: DataFrame) -> DataFrame:
    """Each row once more under the name that stands for all. A name that is not known is no name: its rows
    count for the queue alone.
    """
    both = fn.when(fn.col("name").isNull(), fn.array(fn.lit(ALL))).otherwise(fn.array(fn.lit(ALL), "name"))
    return rows.withColumn("name", fn.explode(both))


def _count(condition: Column) -> Column:
    return fn.sum(fn.when(condition, 1).otherwise(0))
