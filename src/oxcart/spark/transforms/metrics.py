"""Figures per queue and job name, by minute, hour and day.

Minutes are computed from rows; hours and days are sums of minutes. Percentiles are exact and always computed
from the attempts. The row named ``*`` is the whole queue. Backlog is the last sample of the queue's lengths
in the window, because a sum of arrivals and ends would drift with every gap. The server has no lengths by job
name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from oxcart.broker.export import EVENTS
from oxcart.model.failure import Category
from oxcart.spark.read.entries import ENTRY, REFILL
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
#: Columns that count attempts, and the outcomes that they count.
_OUTCOMES = {"completed": "completed", "failed": "failed", "retries": "retried", "stalls": "stalled"}
_NUMBERS = ("arrivals", *_OUTCOMES, *(f"failures_{word}" for word in _CATEGORIES))
_KINDS = ("wait", "run")
_BACKLOG = ("ready", "active", "delayed")


def queue_metrics(
    bronze: DataFrame,
    attempts: DataFrame,
    counts: DataFrame,
    *,
    before: DataFrame | None = None,
    since: Column | None = None,
) -> DataFrame:
    """Returns the figures.

    Args:
        bronze: Rows for arrivals.
        attempts: Attempts; running ones are left out.
        counts: Samples for the backlog.
        before: Minutes that are known already, each of which ended before ``since``.
        since: The time at which unknown minutes begin; it may differ by queue. Attempts are those of the
        whole
            day; hours that ended by then are left out.
    """
    first = fn.lit(0) if since is None else since
    ended = attempts.filter(fn.col("ended_ms").isNotNull()).select(
        "queue", "name", fn.col("ended_ms").alias("at_ms"), "outcome", "category", "wait_ms", "run_ms"
    )
    added = bronze.filter(
        fn.col("kind").isin(ENTRY, REFILL) & (fn.col("stream") == EVENTS) & (fn.col("event") == "added")
    )
    minutes = _minutes(added.select("queue", "name", "at_ms"), ended, counts, first)
    known = minutes if before is None else before.select(*minutes.columns).unionByName(minutes)
    made = minutes.unionByName(_wider(known, ended, first - first % fn.lit(WINDOWS["hour"])))
    return made.select(fn.to_date(fn.timestamp_millis("start_ms")).alias("day"), *minutes.columns)


def _minutes(added: DataFrame, ended: DataFrame, counts: DataFrame, since: Column) -> DataFrame:
    """One row per minute and name, from a time on."""
    ready = fn.col("wait") + fn.col("paused") + fn.col("prioritized")
    sample = fn.struct("at_ms", ready.alias("ready"), "active", "delayed")
    # A union, then one sum: that is cheaper than a join of sums.
    rows = (
        _named(added)
        .withColumn("_added", fn.lit(1))
        .unionByName(_named(ended), allowMissingColumns=True)
        .unionByName(
            counts.select("queue", "at_ms", fn.lit(ALL).alias("name"), sample.alias("_sample")),
            allowMissingColumns=True,
        )
    )
    outcome, category = fn.col("outcome"), fn.coalesce(fn.col("category"), fn.lit(_UNTOLD))
    failed = outcome.isin(*FAILED)
    sums = (
        _at(rows.filter(fn.col("at_ms") >= since), "minute")
        .groupBy(*_KEY)
        .agg(
            fn.count("_added").alias("arrivals"),
            *(_count(outcome == word).alias(name) for name, word in _OUTCOMES.items()),
            *(_count(failed & (category == word)).alias(f"failures_{word}") for word in _CATEGORIES),
            fn.max("_sample").alias("_sample"),
            *(_percentiles(f"{kind}_ms").alias(f"_{kind}") for kind in _KINDS),
            *(fn.max(f"{kind}_ms").alias(f"{kind}_max") for kind in _KINDS),
        )
    )
    return sums.select(
        *_KEY,
        *_NUMBERS,
        *(fn.col(f"_sample.{name}").alias(f"backlog_{name}") for name in _BACKLOG),
        *_figures(),
    )


def _wider(minutes: DataFrame, ended: DataFrame, since: Column) -> DataFrame:
    """Hours from a time on, and days: sums of minutes, and percentiles of the attempts.

    Equal durations are counted before they are spread over windows and names.
    """
    measures = fn.array(
        *(fn.struct(fn.lit(kind).alias("_kind"), fn.col(f"{kind}_ms").alias("_value")) for kind in _KINDS)
    )
    hour = fn.col("at_ms") - fn.col("at_ms") % fn.lit(WINDOWS["hour"])
    durations = (
        ended.select("queue", "name", hour.alias("_from"), fn.inline(measures))
        .filter(fn.col("_value").isNotNull())
        .groupBy("queue", "name", "_from", "_kind", "_value")
        .agg(fn.count(fn.lit(1)).alias("_times"))
    )
    sample = fn.struct("start_ms", *(fn.col(f"backlog_{name}").alias(name) for name in _BACKLOG))
    sums = minutes.select(
        "queue",
        "name",
        fn.col("start_ms").alias("_from"),
        *_NUMBERS,
        *(f"{kind}_max" for kind in _KINDS),
        fn.when(fn.col("backlog_ready").isNotNull(), sample).alias("_sample"),
    )
    rows = _at(
        sums.unionByName(_named(durations), allowMissingColumns=True), "hour", "day", at="_from"
    ).filter((fn.col("window") == "day") | (fn.col("start_ms") >= since))
    found = rows.groupBy(*_KEY).agg(
        *(fn.sum(name).alias(name) for name in _NUMBERS),
        fn.max("_sample").alias("_sample"),
        *(
            _percentiles(
                fn.when(fn.col("_kind") == kind, fn.col("_value")), fn.coalesce("_times", fn.lit(1))
            ).alias(f"_{kind}")
            for kind in _KINDS
        ),
        *(fn.max(f"{kind}_max").alias(f"{kind}_max") for kind in _KINDS),
    )
    # A window without a minute ended before `since`: it is known already.
    return found.filter(fn.col("arrivals").isNotNull()).select(
        *_KEY,
        *_NUMBERS,
        *(fn.col(f"_sample.{name}").alias(f"backlog_{name}") for name in _BACKLOG),
        *_figures(),
    )


def _percentiles(value: Column | str, times: Column | int = 1) -> Column:
    return fn.percentile(value, fn.array(*map(fn.lit, _SHARES)), times)


def _figures() -> Iterator[Column]:
    """The columns of durations."""
    for kind in _KINDS:
        for at, name in enumerate(_NAMES):
            yield fn.col(f"_{kind}")[at].alias(f"{kind}_{name}")
        yield fn.col(f"{kind}_max")


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
    """Each row once more under the name of the whole queue; rows without a name count for the queue alone."""
    both = fn.when(fn.col("name").isNull(), fn.array(fn.lit(ALL))).otherwise(fn.array(fn.lit(ALL), "name"))
    return rows.withColumn("name", fn.explode(both))


def _count(condition: Column) -> Column:
    return fn.sum(fn.when(condition, 1).otherwise(0))
