"""A Spark task that is a worker: Oxcart's own ``Worker``, in the Python process of an executor.

So claims, leases, the renewer process, verdicts, recovery and maintenance are those of every worker. A task
that is killed leaves its jobs to the stalled check of any worker of the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from oxcart.broker.connection import Reconnect
from oxcart.engine.batch_handler import BatchHandler
from oxcart.engine.handler import Handler
from oxcart.engine.worker import Worker
from oxcart.queue import Queue
from oxcart.spark.work.plan import Plan
from oxcart.spark.work.tally import ENDS, Tally

if TYPE_CHECKING:
    import pyarrow as pa

#: The row that a task returns.
SCHEMA = ", ".join(f"{name} bigint" for name in (*ENDS, "restarts"))
#: Attempts to reach a lost server, over about a minute. Then the task fails, and Spark decides.
ATTEMPTS = 35
#: Seconds between looks whether an idle task has drained its queue.
LOOK = 0.05
#: Retries whose states one look reads.
PAGE = 500


def task_of(plan: Plan) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns the function for ``mapInArrow``: runs jobs, then returns one row of counts."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        for _ in batches:  # Spark's own input: the number of the task
            pass
        context = TaskContext.get()
        counts = asyncio.run(work(plan))
        counts["restarts"] = 0 if context is None else min(1, context.attemptNumber())
        yield pa.RecordBatch.from_pydict({name: [count] for name, count in counts.items()})

    return run


async def work(plan: Plan) -> dict[str, int]:
    """Runs jobs until the plan's end; returns how many attempts ended in which way.

    Raises:
        BrokerUnavailable: The server stayed away.
        AccessDenied: The server refused the login.
    """
    tally = Tally(plan.linger)
    queue = plan.open()
    try:
        _register(queue, plan)
        options: dict[str, Any] = {"reconnect": Reconnect(attempts=ATTEMPTS), **plan.worker}
        worker = Worker(queue, concurrency=plan.concurrency, observer=tally, schedules=False, **options)
        running = asyncio.create_task(worker.run(), name="oxcart-worker")
        ending = asyncio.create_task(_end(queue, plan, tally), name="oxcart-drain")
        try:
            await asyncio.wait((running, ending), return_when=asyncio.FIRST_COMPLETED)
            worker.stop()
            await running
            if ending.done():
                await ending  # an error of the server while it was asked
        finally:
            ending.cancel()
            running.cancel()
            await asyncio.gather(ending, running, return_exceptions=True)
    finally:
        await queue.close()
    return dict(tally.counts)


def _register(queue: Queue, plan: Plan) -> None:
    function, name = plan.handler, plan.name or "*"
    handler: Handler
    if plan.batch is None:
        handler = Handler(name, function, options=queue._core.defaults)
    else:
        from oxcart.spark.work.arrow import arrow_handler

        handler = BatchHandler(
            name,
            arrow_handler(function, plan.schema),
            batch=plan.batch,
            within=plan.within,
            options=queue._core.defaults,
        )
    queue._core.handlers.add(handler, fallback=plan.name is None)


async def _end(queue: Queue, plan: Plan, tally: Tally) -> None:
    """Returns when the queue is drained, or the time is over."""
    try:
        async with asyncio.timeout(plan.seconds):
            while True:
                if plan.drain and not tally.running and await _is_drained(queue, tally):
                    return
                await asyncio.sleep(LOOK)
    except TimeoutError:
        return


async def _is_drained(queue: Queue, tally: Tally) -> bool:
    broker = queue._core.broker
    counts = await broker.counts_at_once()
    if counts["wait"] or counts["prioritized"] or counts["paused"] or counts["active"] or tally.running:
        return False
    while tally.retries:
        ids = list(tally.retries)[:PAGE]
        for job_id, state in zip(ids, await broker.states(ids), strict=True):
            if state == "delayed":
                return False
            tally.retries.pop(job_id, None)
    # A retry may have become ready between the two reads.
    counts = await broker.counts_at_once()
    return not (counts["wait"] or counts["prioritized"] or counts["paused"] or counts["active"])
