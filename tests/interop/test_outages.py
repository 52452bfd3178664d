"""A Node worker that checks first after an outage of the server."""

from __future__ import annotations

import asyncio

import pytest

from oxcart import Queue
from oxcart.broker.port import Ask, Lease, Outage
from tests.nodes import NodeDriver

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="session")]

RULE = Outage(silence_ms=400, grace_ms=600)
WORKER = {"name": "nd", "stalledInterval": 1}


async def marked_and_lost(queue: Queue) -> Lease:
    """Returns the lease, about to expire, of a running job that our stalled check has marked."""
    broker = queue._core.broker
    await queue.add("j")
    (job,) = (await broker.claim(Ask(worker="w1", lock_ms=60_000))).jobs
    while (await broker.recover(interval_ms=1, outage=RULE)).wait_ms or not await broker.appear(RULE):
        await asyncio.sleep(0.02)
    lease = Lease(job.id, job.token, job.starts)
    assert await broker.renew([lease], 50) == []
    assert (await broker.recover(interval_ms=1, outage=RULE)).ids == []
    return lease


async def test_node_takes_no_job_of_a_worker_that_still_has_to_renew(node: NodeDriver, queue: Queue) -> None:
    lease = await marked_and_lost(queue)
    await asyncio.sleep(2 * RULE.silence_ms / 1000)  # no client reaches the server
    assert await node.call("recover", queue=queue.name, worker=WORKER) == []
    assert await queue._core.broker.renew([lease], 60_000) == []
    await asyncio.sleep(0.01)
    assert await node.call("recover", queue=queue.name, worker=WORKER) == []
    assert await queue.jobs.state(lease.id) == "active"


async def test_without_an_outage_node_takes_the_job_of_a_dead_worker(node: NodeDriver, queue: Queue) -> None:
    lease = await marked_and_lost(queue)
    taken: list[str] = []
    async with asyncio.timeout(60):
        while not taken:
            await queue._core.broker.appear(RULE)
            await asyncio.sleep(0.02)
            taken = await node.call("recover", queue=queue.name, worker=WORKER)
    assert taken == [lease.id]
