"""The buckets of charts: as wide as the span needs, from seconds to days, and their figures.

A chart has at most `MOST_BUCKETS` points, whatever the span. Gold has minutes, hours and days. Other widths
are computed from silver and bronze, so that percentiles are exact and no mean of percentiles is ever shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from oxcart.drawing.charts import WIDTHS, Row
from oxcart.spark.lake.bronze import BRONZE
from oxcart.spark.read.entries import ENTRY, REFILL
from oxcart.spark.transforms.lanes import join_lanes
from oxcart.spark.transforms.metrics import ALL, WINDOWS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from oxcart.spark.lake.tables import Tables
    from oxcart.spark.lake.versions import Version

#: Points of a line at most.
MOST_BUCKETS = 180
BACKLOG = ("ready", "active", "delayed")
#: The figures of a bucket.
FIGURES = (
    *("arrivals", "completed", "failed", "wait_p50", "wait_p99"),
    *(f"backlog_{name}" for name in BACKLOG),
)


def width_of(span_ms: int) -> int:
    """Returns the least width whose buckets are few enough for a span."""
    return next((width for width in WIDTHS if span_ms <= width * MOST_BUCKETS), max(WIDTHS))


def points_of(
    tables: Tables, version: Version, days: Sequence[str], queues: Sequence[str], width: int
) -> list[Row]:
    """Returns the figures of buckets, one row per queue and bucket that has any, in their order.

    Args:
        tables: The lake's tables.
        version: The lake's version.
        days: The days.
        queues: The queues, by the names of their streams.
        width: The width of a bucket in ms.
    """
    from pyspark.sql import functions as fn

    def read(table: str) -> DataFrame:
        found = tables.read(table, version, days=days)
        rows = found if table == BRONZE else join_lanes(found)
        return rows.filter(fn.col("queue").isin(list(queues)))

    window = next((name for name, length in WINDOWS.items() if length == width), None)
    if window is not None:
        gold = read("queue_metrics").filter((fn.col("window") == window) & (fn.col("name") == ALL))
        rows = [row.asDict() for row in gold.select("queue", "start_ms", *FIGURES).collect()]
        return sorted(rows, key=_place)

    def grouped(rows: DataFrame, at: str, *figures: Column) -> list[Row]:
        start = (fn.col(at) - fn.col(at) % fn.lit(width)).alias("start_ms")
        return [row.asDict() for row in rows.groupBy("queue", start).agg(*figures).collect()]

    def count(condition: Column) -> Column:
        return fn.sum(fn.when(condition, 1).otherwise(0))

    outcome = fn.col("outcome")
    added = (fn.col("event") == "added") & fn.col("kind").isin(ENTRY, REFILL) & (fn.col("stream") == "events")
    ready = (fn.col("wait") + fn.col("paused") + fn.col("prioritized")).alias("ready")
    found = [
        *grouped(read(BRONZE).filter(added), "at_ms", fn.count(fn.lit(1)).alias("arrivals")),
        *grouped(
            read("attempts").filter("ended_ms is not null"),
            "ended_ms",
            count(outcome == "completed").alias("completed"),
            count(outcome == "failed").alias("failed"),
            fn.percentile("wait_ms", fn.lit(0.5)).alias("wait_p50"),
            fn.percentile("wait_ms", fn.lit(0.99)).alias("wait_p99"),
        ),
        *(
            {**row, **{f"backlog_{name}": row["last"][name] for name in BACKLOG}}
            for row in grouped(
                read("counts"), "at_ms", fn.max(fn.struct("at_ms", ready, *BACKLOG[1:])).alias("last")
            )
        ),
    ]
    whole: dict[tuple[str, int], Row] = {}
    for row in found:
        row.pop("last", None)
        whole.setdefault(_place(row), dict.fromkeys(FIGURES)).update(row)
    for row in whole.values():
        for name in FIGURES[:3]:  # a bucket without such an event has none of them
            row[name] = row[name] or 0
    return [whole[place] for place in sorted(whole)]


def _place(row: Row) -> tuple[str, int]:
    return row["queue"], row["start_ms"]
