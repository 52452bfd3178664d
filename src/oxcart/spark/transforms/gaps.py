"""What the streams say of themselves: entries that are missing, and samples of the queue's lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from oxcart.broker.bullmq.broker import STATES
from oxcart.spark.entries import COUNTS, GAP, RECREATED, REFILLED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def gaps(bronze: DataFrame) -> DataFrame:
    """One row per gap: which ordinals are missing, how many (null: nobody can tell), and why.

    ``refilled`` is how many of them the records of jobs told of; null where nobody has asked them.
    """
    lost = fn.col("lost")
    key = ["queue", "stream", "life", "ordinal"]
    told = bronze.filter(fn.col("kind") == REFILLED).groupBy(*key).agg(fn.max("lost").alias("refilled"))
    missing = bronze.filter(fn.col("kind").isin(GAP, RECREATED)).join(fn.broadcast(told), key, "left")
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
    """One row per sample: how many jobs were in each state."""
    told = fn.from_json("data", "map<string,bigint>")
    return (
        bronze.filter(fn.col("kind") == COUNTS)
        .withColumn("_told", told)
        .select(
            "day",
            "queue",
            "at_ms",
            *(
                fn.coalesce(fn.col("_told").getItem(state), fn.lit(0)).alias(state.replace("-", "_"))
                for state in STATES
            ),
        )
    )
