"""Lanes in tables: a row's ``queue`` is the queue that its job belongs to, ``lane`` what the job asks for.

Streams, offsets, bronze and the parts of the lake go by the name of the stream's own queue,
``video@all;c=gpu``, because each stream has its own order. What is made of them is shown by queue and lane.

May touch: nothing; columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: The name of a lane, as ``oxcart.model.target`` reads it.
_LANE = r"^(.+)@((?:all|any)(?:;(?:id|s|c|r)=[A-Za-z0-9._%,-]+)+)$"


def apart(rows: DataFrame) -> DataFrame:
    """Rows by queue and lane; ``lane`` stands behind ``queue`` and is null for jobs without a target."""
    name = fn.col("queue")
    is_lane = name.rlike(_LANE)
    base = fn.when(is_lane, fn.regexp_extract(name, _LANE, 1)).otherwise(name)
    lane = fn.when(is_lane, fn.regexp_extract(name, _LANE, 2))
    known = {"queue": base.alias("queue"), "lane": lane.alias("lane")}
    columns = [column for column in rows.columns if column != "lane"]
    columns.insert(columns.index("queue") + 1, "lane")
    return rows.select(*(known.get(column, fn.col(column)) for column in columns))


def together(rows: DataFrame) -> DataFrame:
    """The same rows by the names of their streams."""
    return rows.withColumn("queue", fn.concat_ws("@", "queue", "lane")).drop("lane")
