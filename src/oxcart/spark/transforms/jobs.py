"""One row per generation of a job: its final state, or its present one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from oxcart.spark.transforms.days import day_of
from oxcart.spark.transforms.events import OVER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Outcomes that are a failed attempt.
FAILED = ("failed", "retried")


def jobs(generations: DataFrame, attempts: DataFrame) -> DataFrame:
    """Returns the jobs; ``day`` is that of the end, null while the job is open.

    ``born`` is null where the beginning is unknown; then the name and the time of creation may be null too. A
    removal without any other event is no job.
    """
    key = ["queue", "job_id", "first_id"]
    place = ("life", "ordinal", "state", "at_ms")
    state = fn.when(fn.col("state").isNotNull(), fn.struct(*place))
    reason = fn.coalesce("r.reason", "reason").alias("reason")
    over = fn.when(fn.col("state").isin(*OVER), fn.struct(*place, reason, "r.category", "r.code"))

    def newest(column: str) -> Column:
        """The last value; users may change it while the job is open."""
        return fn.max_by(column, fn.when(fn.col(column).isNotNull(), fn.struct("life", "ordinal")))

    found = (
        generations.groupBy(*key)
        .agg(
            fn.max("born").alias("born"),
            fn.max("life_name").alias("_name"),
            fn.max("r.name").alias("_r_name"),
            fn.min("life_created").alias("created_ms"),
            fn.max(state).alias("_last"),
            fn.min(over).alias("_over"),
            fn.max(fn.when(fn.col("event") != "removed", True)).alias("_lived"),
            newest("r.corr").alias("correlation_id"),
            newest("r.tags").alias("_tags"),
        )
        .filter(fn.col("_lived") & fn.col("_last").isNotNull())
    )
    tried = attempts.groupBy(*key).agg(
        fn.max("attempt").alias("attempts"),
        fn.sum(fn.when(fn.col("outcome") == "retried", 1).otherwise(0)).cast("int").alias("retries"),
        fn.sum(fn.when(fn.col("outcome") == "stalled", 1).otherwise(0)).cast("int").alias("stalls"),
        fn.min("started_ms").alias("started_ms"),
        fn.sum("wait_ms").alias("wait_ms"),
        fn.sum("run_ms").alias("run_ms"),
        fn.max_by("worker", "attempt").alias("worker"),
        fn.max_by("category", "attempt").alias("category"),
        fn.max_by("code", "attempt").alias("code"),
        fn.max_by("reason", "attempt").alias("_reason"),
    )
    # An ended job that is removed later keeps its final state: a day must not depend on later ones.
    last = fn.coalesce(fn.col("_over.state"), fn.col("_last.state"))
    ended = fn.col("_over.at_ms")
    # A job may end without an attempt: cancelled, out of its lifetime, or with a dependency.
    recorded = fn.col("_over.category").isNotNull()
    code = fn.when(recorded, fn.col("_over.code")).otherwise(fn.col("code"))
    return found.join(tried, key, "left").select(
        day_of(ended).alias("day"),
        *key,
        fn.coalesce("_name", "_r_name").alias("name"),
        "born",
        last.alias("state"),
        "created_ms",
        "started_ms",
        ended.alias("ended_ms"),
        fn.coalesce("attempts", fn.lit(0)).alias("attempts"),
        fn.coalesce("retries", fn.lit(0)).alias("retries"),
        fn.coalesce("stalls", fn.lit(0)).alias("stalls"),
        "wait_ms",
        "run_ms",
        fn.when(last != "completed", fn.coalesce("_over.reason", "_reason")).alias("reason"),
        fn.when(last != "completed", fn.coalesce("_over.category", "category")).alias("category"),
        fn.when(last != "completed", code).alias("code"),
        "worker",
        "correlation_id",
        fn.from_json("_tags", "map<string,string>").alias("tags"),
    )
