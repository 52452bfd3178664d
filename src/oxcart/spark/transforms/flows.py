"""Trees of jobs: children with their parents, and the critical path of each tree.

Events do not name a job's parent; attempt records do. So a child has a row once our worker ended an attempt
of it while a pipeline was attached.

A tree may span queues and days, so ``critical_paths`` reads all of them. It is computed when a query names
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as fn

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: The effect of a child's failure on its parent, by the flag of the wire.
POLICIES = {"fpof": "fail", "cpof": "continue", "idof": "ignore", "rdof": "remove"}
#: Levels of a tree that are followed.
DEEPEST = 100

_KEY = ("queue", "job_id", "first_id")
_NODE = (*_KEY, "name", "state", "created_ms", "started_ms", "ended_ms", "wait_ms", "run_ms")

PATH_SCHEMA = (
    "day date, flow_queue string, flow_id string, flow_first_id string, flow_name string, flow_state string, "
    "total_ms bigint, steps int, step int, queue string, job_id string, first_id string, name string, "
    "state string, begins_ms bigint, started_ms bigint, ended_ms bigint, took_ms bigint, wait_ms bigint, "
    "run_ms bigint, share double"
)


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


def critical_paths(flows: DataFrame, jobs: DataFrame, attempts: DataFrame) -> DataFrame:
    """Returns the jobs that decided how long a tree took, one row each, from the first to the root.

    Of the children that ended before a job last started, the last one to end is on the path, and so on below
    it. A step lasts from the end of the previous one, or the creation of the first, to its own end. So the
    steps of a tree add up to its time. Trees whose root has not ended are left out.

    Args:
        flows: Children of any queues and days.
        jobs: Jobs, their parents among them.
        attempts: Their attempts.
    """
    # Every level is a Spark job of its own, which would compute them again.
    links = _links(jobs, flows, attempts).localCheckpoint(eager=False)
    below = links.select(*(fn.col(f"node.{name}").alias(name) for name in _KEY))
    tops = (
        links.select(*(fn.col(f"p_{name}").alias(name) for name in _KEY))
        .join(below, list(_KEY), "left_anti")
        .distinct()
    )
    roots = jobs.join(tops, list(_KEY)).select("day", fn.struct(*_NODE).alias("node"))
    found = jobs.sparkSession.sql(
        f"""
        WITH RECURSIVE path(day, root, node, level) MAX RECURSION LEVEL {DEEPEST + 1} AS (
          SELECT day, node, node, 0 FROM {{roots}}
          UNION ALL
          SELECT path.day, path.root, links.node, path.level + 1
          FROM path JOIN {{links}} AS links
            ON links.p_queue = path.node.queue AND links.p_job_id = path.node.job_id
            AND links.p_first_id = path.node.first_id
          WHERE path.level < {DEEPEST}
        )
        SELECT * FROM path
        """,
        roots=roots,
        links=links,
    )
    of_root = Window.partitionBy("root.queue", "root.job_id", "root.first_id")
    deepest = fn.max("level").over(of_root)
    ended, created = fn.col("node.ended_ms"), fn.col("node.created_ms")
    begins = fn.coalesce(
        fn.lead(ended).over(of_root.orderBy("level")), created, fn.col("node.started_ms"), ended
    )
    timed = found.withColumns({"_begins": begins, "_deepest": deepest}).withColumn(
        "_total", fn.col("root.ended_ms") - fn.min("_begins").over(of_root)
    )
    took = fn.greatest(fn.lit(0), ended - fn.col("_begins"))
    share = fn.when(fn.col("_total") > 0, took / fn.col("_total"))
    return timed.select(
        "day",
        fn.col("root.queue").alias("flow_queue"),
        fn.col("root.job_id").alias("flow_id"),
        fn.col("root.first_id").alias("flow_first_id"),
        fn.col("root.name").alias("flow_name"),
        fn.col("root.state").alias("flow_state"),
        fn.col("_total").alias("total_ms"),
        (fn.col("_deepest") + 1).alias("steps"),
        (fn.col("_deepest") - fn.col("level") + 1).alias("step"),
        *(fn.col(f"node.{name}").alias(name) for name in _NODE[:5]),
        fn.col("_begins").alias("begins_ms"),
        fn.col("node.started_ms").alias("started_ms"),
        ended.alias("ended_ms"),
        took.alias("took_ms"),
        fn.col("node.wait_ms").alias("wait_ms"),
        fn.col("node.run_ms").alias("run_ms"),
        share.alias("share"),
    )


def _links(jobs: DataFrame, flows: DataFrame, attempts: DataFrame) -> DataFrame:
    """From a generation of a parent to the child that it waited for longest: ``p_…`` and ``node``."""
    named = flows.select(
        fn.col("parent_queue").alias("queue"), fn.col("parent_id").alias("job_id")
    ).distinct()
    last = (
        attempts.join(named, ["queue", "job_id"], "left_semi")
        .groupBy(*_KEY)
        .agg(fn.max("started_ms").alias("_began"))
    )
    above = (
        jobs.filter(fn.col("ended_ms").isNotNull())
        .join(named, ["queue", "job_id"], "left_semi")
        .join(last, list(_KEY), "left")
        .select(
            *(fn.col(name).alias(f"p_{name}") for name in _KEY),
            fn.col("ended_ms").alias("p_ended"),
            # A job that failed because of a child, or was removed, did not start again.
            fn.coalesce("_began", "ended_ms").alias("p_began"),
        )
    )
    children = flows.filter(fn.col("ended_ms").isNotNull())
    pairs = children.join(
        above,
        _same("parent_queue", "p_queue")
        & _same("parent_id", "p_job_id")
        & (fn.col("ended_ms") <= fn.col("p_ended")),
    )
    # An id can have several generations: the parent's is the one that ended first after the child.
    first = pairs.groupBy(*_NODE).agg(
        fn.min(fn.struct("p_ended", "p_began", *(f"p_{name}" for name in _KEY))).alias("_parent")
    )
    held = first.filter(fn.col("ended_ms") <= fn.col("_parent.p_began"))
    return held.groupBy(*(f"_parent.p_{name}" for name in _KEY)).agg(
        fn.max_by(fn.struct(*_NODE), fn.struct("ended_ms", "queue", "job_id")).alias("node")
    )


def _same(one: str, other: str) -> Column:
    return fn.col(one) == fn.col(other)
