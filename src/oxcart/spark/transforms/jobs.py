"""One row per life of a job: its final state, or the one it is in now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from oxcart.spark.transforms.events import OVER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Outcomes that are a failed attempt.
FAILED = ("failed", "retried")


def jobs(lives: DataFrame, attempts: DataFrame) -> DataFrame:
    """The jobs; ``day`` is that of the end, null while the job is open.

    ``born`` is null where the beginning of the life is not known; then the name and the time of creation may
    be null too. A removal of which nothing else is known is no job.
    """
    key = ["queue", "job_id", "first_id"]
    state = fn.when(
        fn.col("state").isNotNull(), fn.struct("life", "ordinal", "state", "at_ms", "reason", "r_category")
    )
    over = fn.when(fn.col("state").isin(*OVER), fn.struct("life", "ordinal", "state", "at_ms"))
    found = (
        lives.groupBy(*key)
        .agg(
            fn.max("born").alias("born"),
            fn.max("name").alias("_name"),
            fn.max("r_name").alias("_r_name"),
            fn.min(fn.when(fn.col("event") == "added", fn.col("at_ms"))).alias("created_ms"),
            fn.max(state).alias("_last"),
            fn.min(over).alias("_over"),
            fn.max(fn.when(fn.col("event") != "removed", True)).alias("_lived"),
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
    # An ended job that is removed later stays what it ended as: a day must not depend on later ones.
    last = fn.coalesce(fn.col("_over.state"), fn.col("_last.state"))
    ended = fn.col("_over.at_ms")
    return found.join(tried, key, "left").select(
        fn.to_date(fn.timestamp_millis(ended)).alias("day"),
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
        fn.when(last != "completed", fn.col("_reason")).alias("reason"),
        fn.when(last != "completed", fn.col("category")).alias("category"),
        fn.when(last != "completed", fn.col("code")).alias("code"),
        "worker",
    )
