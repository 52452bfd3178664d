"""Executors as workers: ``run_jobs(spark, queue, handler)``."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from oxcart import sync
from oxcart.broker.connection import Reconnect
from oxcart.engine.batch_handler import LARGEST
from oxcart.engine.checks import check_count
from oxcart.model.duration import Duration
from oxcart.model.errors import MissingExtra, ValidationError, WrongState
from oxcart.queue import Queue
from oxcart.spark.options import ATTEMPTS
from oxcart.spark.work.plan import Plan, make_plan
from oxcart.spark.work.tally import ENDS, JobsRun

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

T = TypeVar("T")

#: Jobs that a task has at once by default: of an async handler, of a plain one, and in batches per batch.
ASYNC, PLAIN, BATCHES = 200, 10, 2
#: States of jobs that have not ended.
_OPEN = ("wait", "prioritized", "paused", "active", "delayed", "waiting-children")


def run_jobs(
    spark: SparkSession,
    queue: Queue | sync.Queue | str,
    handler: Callable[..., Any],
    *,
    name: str | None = None,
    batch: int | None = None,
    schema: str | StructType | pa.Schema | None = None,
    within: Duration = 1,
    partitions: int | None = None,
    concurrency: int | None = None,
    drain: bool = True,
    duration: Duration | None = None,
    linger: Duration = 60,
    url_env: str | None = None,
    password_env: str | None = None,
    keys_env: str | None = None,
    **worker: Any,
) -> JobsRun:
    """Runs the jobs of a queue on Spark's executors, and returns when they are done.

    Each task is a `Worker` of the queue: leases, retries, failures, dead letters, events and attempt records
    are the same as with ``oxcart work``, and other workers may run beside it. The jobs of a killed executor
    come back by the stalled check.

    Args:
        spark: A session, classic or Spark Connect. Its executors need Oxcart and a way to the server.
        queue: The queue, or the name of one on the server of ``url_env``.
        handler: The function, which Spark copies to the executors: any handler of ``@queue.job``; or with
            ``batch`` a function of a ``pyarrow.RecordBatch``.
        name: The job name that it runs; by default every name.
        batch: The most jobs of one call, 2 to 10 000. The function takes their payloads as one batch and
            returns a batch or table with one row per row, in order: the row is the job's result, or the
            column ``ox_result``. Text in a column ``ox_error`` fails that job alone, as ``ox_category``
            (``temporary`` by default, or ``permanent``) and ``ox_code``.
        schema: The columns of a batch, as Spark writes them (``"user bigint, at timestamp"``) or as an Arrow
            schema. ``ox_id``, ``ox_name`` and ``ox_attempt`` are those of the job. Without a schema the
            batch has one column, ``payload``, with the JSON.
        within: How long the first job of a batch waits for others.
        partitions: How many tasks, by default one per core of the cluster.
        concurrency: How many jobs a task has at once: by default 200 of an async handler, 10 of a plain one,
            two batches. It has their payloads in memory, and a killed executor gives so many back.
        drain: Whether to end when no job is ready or running. Delayed jobs stay, but a retry that this run
            caused is waited for. ``False`` needs a ``duration``.
        duration: How long to run at most. Running jobs may then end (``shutdown_timeout``); the rest goes
            back to the queue.
        linger: How long a drain waits for a retry at most; later retries are left to other workers.
        url_env: The executors' environment variable with the server's url, where the queue's own has a
            password.
        password_env: Or that with the password alone.
        keys_env: Their environment variable with the keys of a sealed queue.
        **worker: Further arguments of ``Worker``, e.g. ``lock_duration`` and ``timeout``.

    Raises:
        ValidationError: An argument is wrong; nothing ran.
        WrongState: The queue is paused, so that a drain would not end.
        BrokerUnavailable: The server cannot be reached.
        MissingExtra: pyspark or pyarrow is not installed.
    """
    try:
        from pyspark.errors import PySparkException

        from oxcart.spark.work.arrow import check_schema
        from oxcart.spark.work.task import SCHEMA, task_of
    except ImportError:
        raise MissingExtra("running jobs on Spark", "spark") from None
    if batch is not None and (type(batch) is not int or not 2 <= batch <= LARGEST):
        raise ValidationError("batch", f"an integer from 2 to {LARGEST}", batch)
    if partitions is not None:
        check_count(partitions, "partitions", 1)
    plan = make_plan(
        queue,
        handler,
        name=name,
        batch=batch,
        schema=None if schema is None else check_schema(_arrow_schema(spark, schema)),
        within=within,
        concurrency=_default_concurrency(handler, batch) if concurrency is None else concurrency,
        drain=drain,
        duration=duration,
        linger=linger,
        url_env=url_env,
        password_env=password_env,
        keys_env=keys_env,
        worker=worker,
    )
    if _aside(_is_paused(plan)) and drain:
        raise WrongState("", f"queue {plan.queue!r} is paused, so a drain would not end: resume it first")
    started = time.monotonic()
    tasks = partitions or _cores(spark)
    try:
        found = spark.range(0, tasks, 1, tasks).mapInArrow(task_of(plan), SCHEMA).collect()
    except PySparkException as error:
        from oxcart.spark.errors import of_task

        raise of_task(error) from error
    rows = [row.asDict() for row in found]
    return JobsRun(
        **{name: sum(row[name] for row in rows) for name in (*ENDS, "restarts")},
        tasks=tasks,
        seconds=time.monotonic() - started,
        left=_aside(_left(plan)),
    )


def _default_concurrency(handler: Callable[..., Any], batch: int | None) -> int:
    if batch is not None:
        return BATCHES * batch
    function = getattr(handler, "__wrapped__", handler)
    return ASYNC if inspect.iscoroutinefunction(function) else PLAIN


def _cores(spark: SparkSession) -> int:
    """Returns how many tasks Spark runs at once; Spark Connect has no context to ask."""
    from pyspark.sql.functions import spark_partition_id

    return spark.range(0, 10_000).select(spark_partition_id()).distinct().count()


def _arrow_schema(spark: SparkSession, schema: str | StructType | pa.Schema) -> pa.Schema:
    import pyarrow as pa
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    if isinstance(schema, pa.Schema):
        return schema
    try:
        read = spark.createDataFrame([], schema).schema if isinstance(schema, str) else schema
        return to_arrow_schema(read, timezone="UTC")
    except PySparkException as error:
        line = " ".join(str(error).split(" SQLSTATE")[0].split())
        raise ValidationError("schema", "columns with types that Arrow has", schema, line) from error


async def _is_paused(plan: Plan) -> bool:
    queue = plan.open()
    queue._core.reconnect = Reconnect(attempts=ATTEMPTS)
    try:
        return await queue.is_paused()
    finally:
        await queue.close()


async def _left(plan: Plan) -> dict[str, int]:
    queue = plan.open()
    try:
        counts = await queue._core.broker.counts_at_once()
    finally:
        await queue.close()
    return {state: counts[state] for state in _OPEN if counts.get(state)}


def _aside(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine in a thread of its own: a notebook has an event loop in the calling one."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, work).result()
