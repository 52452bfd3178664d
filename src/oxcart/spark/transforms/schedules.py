"""Schedules: when their runs were due, when they began, and which were left out.

On BullMQ the id of a run tells its schedule and the time for which it was made: ``repeat:<schedule>:<ms>``.
The rule of a schedule (interval, or expression and zone) is told by the records of attempts alone; where no
record tells, it is null, and so is the number of runs that were left out. On Bridge ids tell nothing; there
the rule, with the schedule and the time, is told when a run is made.

``schedules`` looks over all days, because a run that is left out is seen by the one before it. It is made
when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as fn

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


def firings(lives: DataFrame, jobs: DataFrame) -> DataFrame:
    """One row per run of a schedule: when it was due and what became of it. ``day`` is that of its end.

    A run that has not ended is among them, the next one of each schedule too.
    """
    ready = fn.min(fn.when(fn.col("event") == "waiting", fn.col("at_ms")))
    rule = fn.max_by("r.rule", fn.when(fn.col("r.rule").isNotNull(), fn.struct("life", "ordinal")))
    expected = fn.coalesce(
        fn.regexp_extract("job_id", RUN, 2).try_cast("bigint"),
        _told("due").try_cast("double").try_cast("bigint"),
    )
    told = lives.groupBy(*_KEY).agg(ready.alias("ready_ms"), rule.alias("_rule")).filter(expected.isNotNull())
    named = fn.when(fn.col("job_id").rlike(RUN), fn.regexp_extract("job_id", RUN, 1))
    return jobs.join(told, list(_KEY)).select(
        "day",
        "queue",
        fn.coalesce(named, _told("schedule")).alias("schedule"),
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
        _told("count").try_cast("double").try_cast("bigint").alias("run"),
        _told("every").try_cast("double").try_cast("bigint").alias("every_ms"),
        fn.coalesce(_told("pattern"), _told("cron")).alias("cron"),
        fn.when(_told("utc") == "true", "UTC").otherwise(_told("tz")).alias("tz"),
    )


def schedules(firings: DataFrame) -> DataFrame:
    """One row per day, schedule and rule: how many runs there should have been, and how many there were.

    A run belongs to the day for which it was made; one that was left out to the day of the run behind it. The
    run that a schedule waits for, and one that was removed before it began, count nowhere.

    Args:
        firings: Runs of any queues and days.
    """
    waits = fn.col("started_ms").isNull() & fn.col("state").isin("delayed", "removed")
    by_time = Window.partitionBy("queue", "schedule").orderBy("expected_ms", "first_id")
    told = fn.col("every_ms").isNotNull() | fn.col("cron").isNotNull()
    known = fn.when(told, fn.struct(*_RULE))
    later = by_time.rowsBetween(0, Window.unboundedFollowing)
    runs = firings.filter(~waits).withColumn(
        # What a peer ran has no record: its rule is that of the run before it, or else behind it.
        "_rule",
        fn.coalesce(fn.last(known, True).over(by_time), fn.first(known, True).over(later)),
    )
    before = fn.lag("expected_ms").over(by_time)
    changed = ~fn.lag("_rule").over(by_time).eqNullSafe(fn.col("_rule"))
    counted = runs.withColumn("_before", fn.when(~changed, before)).withColumn("_missed", _missed())
    late = fn.percentile("late_ms", fn.array(fn.lit(0.5), fn.lit(0.99)))
    begun = fn.col("started_ms").isNotNull()
    rule = [fn.col(f"_rule.{name}").alias(name) for name in _RULE]
    day = fn.to_date(fn.timestamp_millis("expected_ms")).alias("day")
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


def _told(name: str) -> Column:
    return fn.get_json_object("_rule", f"$.{name}")


def _missed() -> Column:
    """How many runs the rule has between a run and the one before it; null where the rule is not told."""
    every, now, before = fn.col("_rule.every_ms"), fn.col("expected_ms"), fn.col("_before")
    # The first run of an interval may be beside its slots, so a part of one is none.
    by_interval = fn.greatest(fn.lit(0), fn.round((now - before) / every).cast("bigint") - 1)
    between = fn.udf(lambda *told: _cron_between(*told), "bigint")  # Spark does not read our hints
    by_expression = between(fn.col("_rule.cron"), fn.col("_rule.tz"), before, now)
    return (
        fn.when(fn.col("_rule").isNull(), fn.lit(None))
        .when(before.isNull(), 0)
        .when(every > 0, by_interval)
        .otherwise(by_expression)
        .cast("bigint")
    )


def _cron_between(cron: str | None, tz: str | None, after: int | None, before: int | None) -> int | None:
    """How often an expression fires between two of its times; None where it cannot be told."""
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
