"""Tables about the streams themselves: lost entries, and samples of the queue's lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from oxcart.broker.bullmq.keys import STATES
from oxcart.spark.read.entries import COUNTS, GAP, RECREATED, REFILLED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def gaps(bronze: DataFrame) -> DataFrame:
    """Returns one row per gap: the lost ordinals, how many (null for unknown), and the cause.

    ``refilled`` is how many of them were restored from job records; null where none was tried.
    """
    lost = fn.col("lost")
    key = ["queue", "stream", "life", "ordinal"]
    refilled = bronze.filter(fn.col("kind") == REFILLED).groupBy(*key).agg(fn.max("lost").alias("refilled"))
    missing = bronze.filter(fn.col("kind").isin(GAP, RECREATED)).join(fn.broadcast(refilled), key, "left")
    return missing.select(
        "day",
        "queue",
        "stream",
        "life",
        fn.col("ordinal").alias("first_lost"),
        (fn.col("ordinal") + lost - 1).alias("last_lost"),
        lost.alias("count"),
        "refilled",
        "cause",
        fn.col("entry_id").alias("after_id"),
        "at_ms",
    )


def counts(bronze: DataFrame) -> DataFrame:
    """Returns one row per sample: how many jobs were in each state."""
    lengths = fn.from_json("data", "map<string,bigint>")
    return (
        bronze.filter(fn.col("kind") == COUNTS)
        .withColumn("_lengths", lengths)
        .select(
            "day",
            "queue",
            "at_ms",
            *(
                fn.coalesce(fn.col("_lengths").getItem(state), fn.lit(0)).alias(state.replace("-", "_"))
                for state in STATES
            ),
        )
    )
