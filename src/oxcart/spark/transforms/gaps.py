"""Tables about the streams themselves: lost entries, and samples of the queue's lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from oxcart.broker.export import ATTEMPTS
from oxcart.broker.port.codes import STATES
from oxcart.spark.read.entries import COUNTS, ENTRY, GAP, RECREATED, REFILLED

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


def record_gaps(gaps: DataFrame, bronze: DataFrame) -> DataFrame:
    """Returns the times between which attempt records are lost: ``queue``, ``from_ms`` and ``until_ms``.

    Args:
        gaps: The gaps of the streams.
        bronze: Rows of bronze, the first record after each gap among them; without it a gap has no end yet.
    """
    key = ["queue", "life", "ordinal"]
    lost = gaps.filter((fn.col("stream") == ATTEMPTS) & fn.col("last_lost").isNotNull())
    behind = lost.select(
        "queue", "life", (fn.col("last_lost") + 1).alias("ordinal"), fn.col("at_ms").alias("from_ms")
    )
    records = bronze.filter((fn.col("stream") == ATTEMPTS) & (fn.col("kind") == ENTRY))
    ends = records.select(*key, fn.col("at_ms").alias("until_ms"))
    return behind.join(ends, key, "left").select("queue", "from_ms", "until_ms")


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
