"""Schedules: when their runs were due, when they started, and which were missed.

On BullMQ the id of a run has its schedule and due time: ``repeat:<schedule>:<ms>``. The rule of a schedule
(interval, or expression and zone) is in attempt records alone. Without one it is null, and so is the number
of missed runs. On Bridge the event of a new run has schedule, due time and rule.

A missed run is noticed by the run after it, so ``schedules`` reads all days. It is computed when a query
names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as fn

from oxcart.spark.transforms.days import day_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: The id of a run.
RUN = r"^repeat:(.+):(\d{1,15})$"
#: Runs that are counted between two others at most.
MOST_MISSED = 100_000

_KEY = ("queue", "job_id", "first_id")
_RULE = ("every_ms", "cron", "tz")

SCHEDULE_SCHEMA = (
    "day date, queue string, schedule string, name string, every_ms bigint, cron string, tz string, "
    "expected bigint, made bigint, started bigint, missed bigint, failed bigint, late_p50 double, "
    "late_p99 double, late_max bigint, first_ms bigint, last_ms bigint"
)


def firings(generations: DataFrame, jobs: DataFrame) -> DataFrame:
    """Returns one row per run of a schedule: when it was due and how it ended. ``day`` is that of its end.

    Runs that have not ended are among them, and the next run of each schedule.
    """
    ready = fn.min(fn.when(fn.col("event") == "waiting", fn.col("at_ms")))
    rule = fn.max_by("r.rule", fn.when(fn.col("r.rule").isNotNull(), fn.struct("life", "ordinal")))
    expected = fn.coalesce(
        fn.regexp_extract("job_id", RUN, 2).try_cast("bigint"),
        _of_rule("due").try_cast("double").try_cast("bigint"),
    )
    grouped = generations.groupBy(*_KEY).agg(ready.alias("ready_ms"), rule.alias("_rule"))
    runs = grouped.filter(expected.isNotNull())
    named = fn.when(fn.col("job_id").rlike(RUN), fn.regexp_extract("job_id", RUN, 1))
    return jobs.join(runs, list(_KEY)).select(
        "day",
        "queue",
        fn.coalesce(named, _of_rule("schedule")).alias("schedule"),
        "job_id",
        "first_id",
        "name",
        "state",
        expected.alias("expected_ms"),
        fn.col("created_ms").alias("made_ms"),
        "ready_ms",
        "started_ms",
        (fn.col("started_ms") - expected).alias("late_ms"),
        "ended_ms",
        "attempts",
        _of_rule("count").try_cast("double").try_cast("bigint").alias("run"),
        _of_rule("every").try_cast("double").try_cast("bigint").alias("every_ms"),
        fn.coalesce(_of_rule("pattern"), _of_rule("cron")).alias("cron"),
        fn.when(_of_rule("utc") == "true", "UTC").otherwise(_of_rule("tz")).alias("tz"),
    )


def schedules(firings: DataFrame) -> DataFrame:
    """Returns one row per day, schedule and rule: how many runs were expected, and how many there were.

    A run belongs to the day on which it was due, a missed run to the day of the run after it. The next run of
    a schedule, and a run that was removed before its start, do not count.

    Args:
        firings: Runs of any queues and days.
    """
    waits = fn.col("started_ms").isNull() & fn.col("state").isin("delayed", "removed")
    by_time = Window.partitionBy("queue", "schedule").orderBy("expected_ms", "first_id")
    has_rule = fn.col("every_ms").isNotNull() | fn.col("cron").isNotNull()
    known = fn.when(has_rule, fn.struct(*_RULE))
    later = by_time.rowsBetween(0, Window.unboundedFollowing)
    runs = firings.filter(~waits).withColumn(
        # A peer's run has no record: its rule is that of the previous run, or else of the next.
        "_rule",
        fn.coalesce(fn.last(known, True).over(by_time), fn.first(known, True).over(later)),
    )
    before = fn.lag("expected_ms").over(by_time)
    changed = ~fn.lag("_rule").over(by_time).eqNullSafe(fn.col("_rule"))
    counted = runs.withColumn("_before", fn.when(~changed, before)).withColumn("_missed", _missed())
    late = fn.percentile("late_ms", fn.array(fn.lit(0.5), fn.lit(0.99)))
    begun = fn.col("started_ms").isNotNull()
    rule = [fn.col(f"_rule.{name}").alias(name) for name in _RULE]
    day = day_of("expected_ms").alias("day")
    return (
        counted.groupBy(day, "queue", "schedule", *rule)
        .agg(
            fn.max_by("name", "expected_ms").alias("name"),
            fn.count(fn.lit(1)).alias("made"),
            fn.count(fn.when(begun, True)).alias("started"),
            fn.when(fn.count("_missed") == fn.count(fn.lit(1)), fn.sum("_missed")).alias("missed"),
            fn.count(fn.when(fn.col("state").isin("failed", "dead_letter", "cancelled"), True)).alias(
                "failed"
            ),
            late.alias("_late"),
            fn.max("late_ms").alias("late_max"),
            fn.min("expected_ms").alias("first_ms"),
            fn.max("expected_ms").alias("last_ms"),
        )
        .select(
            "day",
            "queue",
            "schedule",
            "name",
            *_RULE,
            (fn.col("made") + fn.col("missed")).alias("expected"),
            "made",
            "started",
            "missed",
            "failed",
            fn.col("_late")[0].alias("late_p50"),
            fn.col("_late")[1].alias("late_p99"),
            "late_max",
            "first_ms",
            "last_ms",
        )
    )


def _of_rule(name: str) -> Column:
    return fn.get_json_object("_rule", f"$.{name}")


def _missed() -> Column:
    """How many runs the rule has between a run and the previous one; null without a rule."""
    every, now, before = fn.col("_rule.every_ms"), fn.col("expected_ms"), fn.col("_before")
    # The first run of an interval may be off its slots, so a part of a slot does not count.
    by_interval = fn.greatest(fn.lit(0), fn.round((now - before) / every).cast("bigint") - 1)
    between = fn.udf(lambda *given: _cron_between(*given), "bigint")  # Spark does not read our hints
    by_expression = between(fn.col("_rule.cron"), fn.col("_rule.tz"), before, now)
    return (
        fn.when(fn.col("_rule").isNull(), fn.lit(None))
        .when(before.isNull(), 0)
        .when(every > 0, by_interval)
        .otherwise(by_expression)
        .cast("bigint")
    )


def _cron_between(cron: str | None, tz: str | None, after: int | None, before: int | None) -> int | None:
    """How often an expression fires between two of its times; None where it cannot be computed."""
    from oxcart.model.cron import parse_cron
    from oxcart.model.errors import ValidationError

    if cron is None or after is None or before is None:
        return None
    try:
        rule = parse_cron(cron)
        for count in range(MOST_MISSED):
            found = rule.next_ms(after, tz)
            if found is None or found >= before:
                return count
            after = found
    except ValidationError:
        return None
    return None
