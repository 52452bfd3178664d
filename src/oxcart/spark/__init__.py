"""The data pipeline: the history of every job, exactly once, as tables for SQL.

Event streams and job records are the source, open tables are the result, and Spark does the work between
them. A job's events pass through ``read`` (from the server to rows of bronze), ``lake`` (the tables on disk,
and versions of all of them), ``transforms`` (pure functions from bronze to silver to gold), ``build`` (which
days are out of date) and ``report``. ``source`` and ``sink`` are Spark's ``format("oxcart")``. ``work`` is
Spark as a worker: `run_jobs`, and ``@queue.job(run="spark")``.

    import oxcart.spark

    oxcart.spark.register(spark)  # any session, classic or Spark Connect
    spark.read.format("oxcart").option("pattern", "*").load()
    oxcart.spark.tables(spark, "lake")  # the lake's tables as views

Importing `oxcart` imports none of it. Importing this package imports no pyspark: `register` and `tables` do,
and `oxcart.spark.session` when it opens a session.
"""

from __future__ import annotations

from oxcart.spark.session import register, tables
from oxcart.spark.work.job import SparkJob
from oxcart.spark.work.run_jobs import run_jobs
from oxcart.spark.work.tally import JobsRun

__all__ = ["JobsRun", "SparkJob", "register", "run_jobs", "tables"]
