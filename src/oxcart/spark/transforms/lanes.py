"""Queue and lane as columns: a row's ``queue`` is the queue of its job, ``lane`` the target of the job.

Streams, offsets, bronze and the parts of the lake go by the name of the stream, such as ``video@all;c=gpu``,
because each stream has its own order. Silver and gold have queue and lane apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from oxcart.model.target import split_lane

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def split_lanes(rows: DataFrame, streams: Iterable[str]) -> DataFrame:
    """Splits the name of a stream into ``queue`` and ``lane``; ``lane`` is null for jobs without a target.

    Args:
        rows: Rows by the names of their streams.
        streams: All streams that the rows may have. Only the model knows which of them are lanes.
    """
    name = fn.col("queue")
    lanes: list[Column] = []
    for stream in sorted(set(streams)):
        queue, lane = split_lane(stream)
        if lane is not None:
            lanes += (fn.lit(stream), fn.struct(fn.lit(queue).alias("queue"), fn.lit(lane).alias("lane")))
    base, target = name, fn.lit(None).cast("string")
    if lanes:
        found = fn.try_element_at(fn.create_map(*lanes), name)
        base, target = fn.coalesce(found.getField("queue"), name), found.getField("lane")
    known = {"queue": base.alias("queue"), "lane": target.alias("lane")}
    columns = [column for column in rows.columns if column != "lane"]
    columns.insert(columns.index("queue") + 1, "lane")
    return rows.select(*(known.get(column, fn.col(column)) for column in columns))


def join_lanes(rows: DataFrame) -> DataFrame:
    """Returns the same rows by the names of their streams."""
    return rows.withColumn("queue", fn.concat_ws("@", "queue", "lane")).drop("lane")
