"""Lanes with peers: Node adds to an unknown lane, and a Node worker consumes one."""

from __future__ import annotations

import pytest

from oxcart import Queue, RunningJob, Worker
from oxcart.model.target import Abilities, Target
from tests.interop.obedient import LIMIT
from tests.nodes import NodeDriver
from tests.signals import eventually

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="session")]


async def test_a_node_producer_makes_a_lane(node: NodeDriver, queue: Queue) -> None:
    @queue.fallback
    async def run(job: RunningJob) -> str:
        return f"{job.queue} {job.snapshot().lane}"

    lane = f"{queue.name}@any;r=mars;c=gpu,cuda"  # a peer need not sort
    async with Worker(queue, abilities=Abilities(capabilities="cuda")).running():
        job_id = await node.call("add", queue=lane, name="n", data={}, opts={})

        async def has_run() -> bool:
            return await queue.jobs.state(str(job_id)) == "completed"

        await eventually(has_run, "the worker found the lane", LIMIT)
        job = await queue.jobs.get(str(job_id))
    assert job is not None
    assert (job.queue, job.lane) == (queue.name, "any;r=mars;c=gpu,cuda")
    assert job.return_value == f"{queue.name} any;r=mars;c=gpu,cuda"


async def test_node_reads_what_is_in_a_lane(node: NodeDriver, queue: Queue) -> None:
    handle = await queue.add("n", {"x": 1}, target=Target(capabilities="gpu"), priority=3)
    theirs = await node.call("getJob", queue=handle.queue.name, jobId=handle.id)
    assert (theirs["data"], theirs["opts"]["priority"]) == ({"x": 1}, 3)
    assert await node.call("getState", queue=handle.queue.name, jobId=handle.id) == "prioritized"


async def test_lanes_outlive_the_base_queue_that_node_obliterates(node: NodeDriver, queue: Queue) -> None:
    @queue.fallback
    async def run() -> str:
        return "done"

    handle = await queue.add("n", target=Target(capabilities="gpu"), job_id="one")
    await queue.add("n")
    await node.call("obliterate", queue=queue.name)
    assert await queue.counts() == dict.fromkeys(await queue.counts(), 0) | {"waiting": 1}

    async def is_found() -> bool:
        return await queue.jobs.state("one") == "completed"

    async with Worker(queue, abilities=Abilities(capabilities="gpu")).running():
        assert await handle.result(LIMIT) == "done"
        await eventually(is_found, "the tick marks the queue as one with lanes again", LIMIT)


async def test_a_lane_that_node_serves_is_not_unroutable(node: NodeDriver, queue: Queue) -> None:
    target = Target(capabilities="gpu")
    handle = await queue.add("n", {"hold": True}, target=target)
    waits = await queue.add("n", {"result": 7}, target=target)
    assert await queue.workers.unroutable() == {"all;c=gpu": 2}
    await node.call("workerStart", handle="w", queue=handle.queue.name, options={"name": "wk"})
    try:
        await node.call("workerWait", handle="w", runs=1)
        assert await queue.jobs.state(waits.id) == "waiting"
        assert await queue.workers.unroutable() == {}
    finally:
        await node.call("workerRelease", handle="w")
        assert await waits.result(LIMIT) == 7
        await node.call("workerStop", handle="w")
    await queue.add("n", target=target)

    async def is_unserved() -> bool:
        return await queue.workers.unroutable() == {"all;c=gpu": 1}

    await eventually(is_unserved, "its connection is gone", LIMIT)
