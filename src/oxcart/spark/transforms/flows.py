"""Trees of jobs: children with their parents. `oxcart.spark.views.critical_paths` makes paths of them.

Events do not name a job's parent; attempt records do. So a child has a row once our worker ended an attempt
of it while a pipeline was attached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: The effect of a child's failure on its parent, by the flag of the wire.
POLICIES = {"fpof": "fail", "cpof": "continue", "idof": "ignore", "rdof": "remove"}

_KEY = ("queue", "job_id", "first_id")
_NODE = (*_KEY, "name", "state", "created_ms", "started_ms", "ended_ms", "wait_ms", "run_ms")


def flows(generations: DataFrame, jobs: DataFrame) -> DataFrame:
    """Returns one row per generation of a child: its parent and its end, whose day is ``day``."""
    children = generations.filter(fn.col("r.parent").isNotNull())
    parent = children.groupBy(*_KEY).agg(fn.max_by("r.parent", fn.struct("life", "ordinal")).alias("_parent"))
    place = fn.regexp_extract(fn.get_json_object("_parent", "$.queueKey"), "[^:]+$", 0)
    # On a cluster the queue's name is a hash tag, unless the user gave it one.
    bare = fn.when(fn.col("queue").contains("{"), place).otherwise(fn.regexp_replace(place, "[{}]", ""))
    policy = fn.lit("wait")
    for flag, word in POLICIES.items():
        policy = fn.when(fn.get_json_object("_parent", f"$.{flag}") == "true", word).otherwise(policy)
    return jobs.join(parent, list(_KEY)).select(
        "day",
        *_KEY,
        "name",
        "state",
        bare.alias("parent_queue"),
        fn.get_json_object("_parent", "$.id").alias("parent_id"),
        policy.alias("on_failure"),
        *_NODE[5:],
    )
