"""Schedules: when their runs were due, and when they started.

On BullMQ the id of a run has its schedule and due time: ``repeat:<schedule>:<ms>``. The rule of a schedule
(interval, or expression and zone) is in attempt records alone. Without one it is null, and so is the number
of missed runs. On Bridge the event of a new run has schedule, due time and rule.

`oxcart.spark.views.schedules` counts runs and missed runs by day.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: The id of a run.
RUN = r"^repeat:(.+):(\d{1,15})$"

_KEY = ("queue", "job_id", "first_id")


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


def _of_rule(name: str) -> Column:
    return fn.get_json_object("_rule", f"$.{name}")
