"""Limits per type and key beside a Node worker, which does not know them: it sees a valid queue."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oxcart import Queue, Worker
from oxcart.broker.port import Ask, Outcome, OutcomeKind
from oxcart.limits import Usage
from tests.nodes import NodeDriver
from tests.signals import eventually

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="session")]

LIMIT = 20


async def test_node_workers_do_not_claim_parked_jobs(node: NodeDriver, queue: Queue) -> None:
    await queue.limits.set_type_limit("slow", concurrent=1)
    handles = await queue.add_many([("slow", n) for n in range(4)])
    [ours] = (await queue._core.broker.claim(Ask(10))).jobs
    assert await queue.limits.type_usage("slow") == Usage(1, 3, 0)
    for handle in handles[1:]:
        assert await node.call("getState", queue=queue.name, jobId=handle.id) == "delayed"
    assert (await node.call("getJobCounts", queue=queue.name))["delayed"] == 3
    await node.call("remove", queue=queue.name, jobId=handles[1].id)
    await node.call("promote", queue=queue.name, jobId=handles[2].id)
    # The peer runs the job that it promoted; the rest stays.
    await node.call("workerStart", handle=queue.name, queue=queue.name)
    await node.call("workerWait", handle=queue.name, finished=1)
    assert await node.call("getState", queue=queue.name, jobId=handles[2].id) == "completed"
    assert await handles[3].state() == "delayed"
    await node.call("workerStop", handle=queue.name)
    # Our workers continue with the rest and skip the notes of jobs that the peer ran.
    outcome = Outcome(
        OutcomeKind.COMPLETED, ours.id, ours.token, ours.starts, queue._core.broker.clock(), b"1", b"[]"
    )
    assert (await queue._core.broker.finish([outcome]))[0] == [1]
    assert await queue.limits.type_usage("slow") == Usage(0, 0, 0)
    queue.fallback(_nothing)
    async with Worker(queue).running():
        assert await handles[3].result(LIMIT) is None


async def test_node_adds_jobs_of_a_limited_type(node: NodeDriver, queue: Queue) -> None:
    await queue.limits.set_type_limit("slow", concurrent=2)
    running: list[int] = [0, 0]

    @queue.fallback
    async def work() -> None:
        running[0] += 1
        running[1] = max(running)
        await asyncio.sleep(0.002)
        running[0] -= 1

    jobs: list[Any] = [{"name": "slow", "data": {}} for _ in range(30)]
    async with Worker(queue, concurrency=10).running():
        await node.call("addBulk", queue=queue.name, jobs=jobs)

        async def done() -> bool:
            return (await queue.counts())["completed"] == 30

        await eventually(done, "all have run")
    assert running[1] <= 2


async def _nothing() -> None: ...
