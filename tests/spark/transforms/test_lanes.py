"""Queue and lane of a stream, as the model reads its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from oxcart.spark.transforms.lanes import join_lanes, split_lanes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The last one names capabilities twice, and so is no lane.
STREAMS = ("video", "video@all;c=gpu", "ada@example.com", "video@all;c=a;c=b")


def test_only_names_that_the_model_takes_for_lanes_are_split(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(name, n) for n, name in enumerate(STREAMS)], "queue string, n int")
    split = split_lanes(rows, STREAMS)
    assert split.columns == ["queue", "lane", "n"]
    assert [tuple(row)[:2] for row in split.orderBy("n").collect()] == [
        ("video", None),
        ("video", "all;c=gpu"),
        ("ada@example.com", None),
        ("video@all;c=a;c=b", None),
    ]
    assert {row.queue for row in join_lanes(split).collect()} == set(STREAMS)
