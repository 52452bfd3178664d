"""A job with durable steps is a delayed job like any other to Node, which promotes and removes it."""

from __future__ import annotations

from typing import Any

import pytest

from oxcart import Queue, RunningJob, Worker
from tests.nodes import NodeDriver
from tests.servers import ValkeyServer
from tests.signals import eventually

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="session")]

LIMIT = 60


async def test_node_sees_promotes_and_removes_jobs_that_wait(
    node: NodeDriver, queue: Queue, server: ValkeyServer
) -> None:
    @queue.job
    async def order(job: RunningJob) -> Any:
        await job.step("charge", str, "receipt")
        return await job.wait_signal("approved", "7d")

    async def waits() -> bool:
        return bool(await node.call("getState", queue=queue.name, jobId=job.id) == "delayed")

    async with Worker(queue).running():
        job = await order.enqueue()
        await eventually(waits, "Node sees a delayed job")
        await node.call("promote", queue=queue.name, jobId=job.id)  # our handler looks again and waits on
        await eventually(lambda: _started(queue, job.id, 2), "it ran again")
        await eventually(waits, "it waits again")
        assert await job.signal("approved", {"by": "Ada"}) is True
        assert await job.result(LIMIT) == {"by": "Ada"}
        other = await order.enqueue()
        await eventually(lambda: _steps(queue, other.id, 2), "it waits")
        await eventually(lambda: _is_delayed(queue, other.id), "no worker runs it")
    seen = await node.call("getJob", queue=queue.name, jobId=job.id)
    assert (seen["id"], seen["name"], seen["attemptsMade"]) == (job.id, "order", 1)
    await node.call("remove", queue=queue.name, jobId=other.id)
    assert server.client().keys(f"bull:{queue.name}:{other.id}*") == [], "its steps went with it"


async def _started(queue: Queue, job_id: str, times: int) -> bool:
    found = await queue.jobs.get(job_id)
    return found is not None and found.attempts_started >= times


async def _steps(queue: Queue, job_id: str, count: int) -> bool:
    found = await queue.jobs.get(job_id)
    return found is not None and len(found.steps) == count


async def _is_delayed(queue: Queue, job_id: str) -> bool:
    return await queue.jobs.state(job_id) == "delayed"
