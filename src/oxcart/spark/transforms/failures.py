"""Clusters of failures that differ in their particulars alone.

A message is normalised by `oxcart.model.particulars`, as ``oxcart failures`` masks reasons. Of a stack the
last frames count, without line numbers. Equal failures are one cluster.

Clusters add up: the tally of a day's earlier spans and new attempts give the row of the whole day.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from oxcart.model.particulars import LONGEST, PARTICULARS
from oxcart.spark.transforms.jobs import FAILED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Frames of the stack that count.
FRAMES = 5
#: The columns of a tally, besides day and queue.
CLUSTER_SCHEMA = (
    "cluster string, message string, frames string, example string, example_job string, "
    "names array<string>, categories array<string>, first_ms bigint, last_ms bigint, count bigint, "
    "fatal bigint"
)
#: The columns of a cluster, besides its key.
CLUSTER = (
    *("message", "frames", "example", "example_job", "names", "categories"),
    *("first_ms", "last_ms", "count", "fatal"),
)


def clusters(
    attempts: DataFrame, *, tallies: DataFrame | None = None, through: Column | None = None
) -> DataFrame:
    """Returns the clusters of failures that have new attempts or a tally, each with its tally.

    Args:
        attempts: New attempts.
        tallies: Tallies of clusters from earlier spans of the day.
        through: Attempts that ended later are in the row but not in the tally, because the next span has them
            again. None for a day that is over, which needs no tally.

    Returns:
        Rows with the columns of ``failures``, and ``tally``: null where none of the cluster is settled.
    """
    failed = attempts.filter(fn.col("outcome").isin(*FAILED) & fn.col("reason").isNotNull())
    marked = (
        failed.withColumn("message", normalised(fn.col("reason")))
        .withColumn("frames", frames(fn.col("stack")))
        .withColumn(
            "cluster",
            fn.substring(
                fn.sha2(fn.concat_ws("\n", "message", fn.coalesce(fn.col("frames"), fn.lit(""))), 256), 1, 16
            ),
        )
    )
    kept = fn.lit(False) if through is None else fn.col("ended_ms") <= through
    rows = marked.select(
        "day",
        "queue",
        "cluster",
        "message",
        "frames",
        fn.col("reason").alias("example"),
        fn.col("job_id").alias("example_job"),
        _listed("name").alias("names"),
        _listed("category").alias("categories"),
        fn.col("ended_ms").alias("first_ms"),
        fn.col("ended_ms").alias("last_ms"),
        fn.lit(1).cast("bigint").alias("count"),
        fn.when(fn.col("outcome") == "failed", 1).otherwise(0).cast("bigint").alias("fatal"),
        kept.alias("_kept"),
    )
    if tallies is not None:
        known = tallies.filter(fn.col("cluster").isNotNull())
        rows = rows.unionByName(known.select(*rows.columns[:-1], fn.lit(True).alias("_kept")))
    settled = fn.struct(*(_merged(name, fn.col("_kept")).alias(name) for name in CLUSTER))
    made = rows.groupBy("day", "queue", "cluster").agg(
        *(_merged(name).alias(name) for name in CLUSTER), settled.alias("tally")
    )
    return made.withColumn("tally", fn.when(fn.col("tally.count") > 0, fn.col("tally")))


def failures(clusters: DataFrame) -> DataFrame:
    """Returns one row per day and cluster: an example, the count, and the first and last time."""
    return clusters.drop("tally")


def cluster_tallies(clusters: DataFrame) -> DataFrame:
    """Returns the tallies of clusters."""
    found = clusters.filter(fn.col("tally").isNotNull())
    return found.select("day", "queue", "cluster", *(fn.col(f"tally.{name}").alias(name) for name in CLUSTER))


def _merged(name: str, which: Column | None = None) -> Column:
    """The value of a column for a cluster, of all its rows or of some."""
    value = fn.col(name) if which is None else fn.when(which, fn.col(name))
    if name in ("example", "example_job"):
        earliest = fn.struct("first_ms", "example_job")
        return fn.min_by(value, earliest if which is None else fn.when(which, earliest))
    if name in ("names", "categories"):
        return fn.array_sort(fn.array_distinct(fn.flatten(fn.collect_list(value))))
    if name in ("count", "fatal"):
        return fn.sum(value)
    return fn.max(value) if name == "last_ms" else fn.min(value)


def _listed(name: str) -> Column:
    """A value as a list; an empty one for null."""
    return fn.when(fn.col(name).isNull(), fn.array().cast("array<string>")).otherwise(fn.array(name))


def normalised(message: Column) -> Column:
    """Returns a message without its particulars."""
    made = fn.substring(message, 1, LONGEST)
    for pattern, word in PARTICULARS:
        made = fn.regexp_replace(made, f"(?U){pattern}", word)  # letters of all alphabets, as in Python
    return fn.trim(made)


def frames(stack: Column) -> Column:
    """Returns the last frames of a stack: file and function, without lines and folders."""
    found = fn.regexp_extract_all(
        stack, fn.lit(r'(?:File "(?:[^"]*/)?([^"/]+)", line \d+, in (\S+))|(?:at ([^\n(]+) \()'), fn.lit(0)
    )
    lines = fn.transform(
        found,
        lambda line: fn.regexp_replace(
            fn.regexp_replace(line, r'^File "(?:[^"]*/)?([^"/]+)", line \d+, in (\S+)$', "$1:$2"),
            r"^at |\s*\($",
            "",
        ),
    )
    last = fn.when(fn.size(lines) > FRAMES, fn.slice(lines, -FRAMES, FRAMES)).otherwise(lines)
    return fn.when(fn.size(lines) > 0, fn.array_join(last, " > "))
