"""Durable steps in the table of transitions, on both protocols."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oxcart import Queue, RunningJob, Worker
from oxcart.spark.options import QueueSelection, ServerAddress
from tests.signals import eventually

pytest.importorskip("pyspark")

from oxcart.spark.pipeline import Pipeline, Plan
from oxcart.spark.read.attachment import attach

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


async def run(queue: Queue) -> None:
    """Runs a job in three starts: it sleeps, waits for a signal, and completes."""

    @queue.job
    async def order(job: RunningJob) -> None:
        await job.step("charge", int)
        await job.step("mail", int)
        await job.sleep(0.01)
        await job.wait_signal("approved")
        await job.step("ship", int)

    async def waits() -> bool:
        last = (await job.get()).steps[-1:]
        return bool(last) and last[0].kind == "wait" and await job.state() == "delayed"

    async with Worker(queue).running():
        job = await order.enqueue()
        await eventually(waits, "it waits")
        await job.signal("approved")
        await job.result(30)


@pytest.mark.parametrize("namespace", [None, "ns"])
async def test_the_move_that_ends_a_run_names_its_steps(
    spark: SparkSession, url: str, store: Any, tmp_path: Path, namespace: str | None
) -> None:
    address = ServerAddress(url=url, namespace=namespace)
    where: Any = {} if namespace is None else {"protocol": "bridge", "namespace": namespace}
    async with Queue("orders", url=url, **where) as queue:
        await (await queue.add("other")).remove()  # now the queue exists
        assert await asyncio.to_thread(attach, address, "orders", "main") is not None
        await run(queue)
    pipeline = Pipeline(spark, Plan(tmp_path / "lake", address, QueueSelection(("orders",)), samples=False))
    await asyncio.to_thread(pipeline.once)
    moves = pipeline.tables.read("transitions").filter("from_state = 'running'")
    rows = moves.orderBy("life", "ordinal").collect()
    assert [(row.to_state, row.steps) for row in rows] == [
        ("delayed", "charge, mail, sleep-1"),
        ("delayed", "approved"),
        ("completed", "ship"),
    ]
    assert all(row.legal for row in rows)
