"""One row per job and attempt: when it was ready, started and ended, and its outcome.

An attempt begins with ``active`` and ends with the next event that takes the job from its worker. The
worker's name, and the failure's category and code, are null where no record of ours has them. ``told_by``
says whether the outcome comes from a record or from events. Node's events are the same for a retry, a snooze
and a returned job, so all three are called ``retried``. ``version`` is that of the worker's program, and
``tenant`` the job's limit key, or else its tag of that name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from oxcart.spark.transforms.days import day_of
from oxcart.spark.transforms.events import PLACES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Events that end an attempt.
_ENDS = tuple(place for place in PLACES if place != "active")


def attempts(generations: DataFrame) -> DataFrame:
    """Returns the attempts in the generations of jobs; ``day`` is that of the end, null while one runs."""
    event = fn.col("event")
    ending = fn.struct("ordinal", "event", "at_ms", "entry_id", "reason", "r", "tags", "limit_key")
    tried = generations.filter(fn.col("attempt") > 0)
    grouped = tried.groupBy("queue", "job_id", "first_id", "attempt").agg(
        fn.max("life_name").alias("_name"),
        fn.max(fn.when(event == "active", fn.col("ready_ms"))).alias("queued_ms"),
        fn.max(fn.when(event == "active", fn.col("at_ms"))).alias("started_ms"),
        fn.min(fn.when(event.isin(*_ENDS), ending)).alias("end"),
        fn.max(fn.when(event == "stalled", True)).alias("_stalled"),
    )
    end = fn.col("end.event")
    concluded = (
        fn.when(end.isin("completed", "failed", "removed"), end)
        .when((end == "waiting") & fn.col("_stalled"), "stalled")
        .when(end.isin("waiting", "delayed"), "retried")
        .when(end == "waiting-children", "waits_for_children")
    )
    run = fn.coalesce(
        fn.col("end.r.ended") - fn.col("end.r.began"), fn.col("end.at_ms") - fn.col("started_ms")
    )
    tags = fn.from_json("end.tags", "map<string,string>")
    return grouped.select(
        day_of("end.at_ms").alias("day"),
        "queue",
        "job_id",
        "first_id",
        "attempt",
        fn.coalesce("_name", "end.r.name").alias("name"),
        "queued_ms",
        "started_ms",
        fn.col("end.at_ms").alias("ended_ms"),
        fn.greatest(fn.lit(0), fn.col("started_ms") - fn.col("queued_ms")).alias("wait_ms"),
        run.alias("run_ms"),
        fn.coalesce("end.r.outcome", concluded).alias("outcome"),
        fn.when(fn.col("end.r.outcome").isNotNull(), "record")
        .when(end.isNotNull(), "events")
        .alias("told_by"),
        fn.coalesce("end.r.reason", "end.reason").alias("reason"),
        fn.col("end.r.category").alias("category"),
        fn.col("end.r.code").alias("code"),
        fn.col("end.r.worker").alias("worker"),
        fn.col("end.r.stack").alias("stack"),
        fn.col("end.r.version").alias("version"),
        fn.coalesce("end.limit_key", tags["tenant"]).alias("tenant"),
        tags.alias("tags"),
        fn.col("end.entry_id").alias("end_id"),
    )
