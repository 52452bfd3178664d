"""Cancelling among peers: Node sees a failure, and force ends a job of a Node worker."""

from __future__ import annotations

import pytest

from oxcart import Flow, Queue
from oxcart.model.errors import CannotCancel
from tests.interop.obedient import LIMIT
from tests.nodes import NodeDriver, NodeError

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="session")]


async def test_node_hears_of_a_job_that_waited(node: NodeDriver, queue: Queue) -> None:
    await node.call("eventsStart", handle=queue.name, queue=queue.name)
    job_id: str = await node.call("add", queue=queue.name, name="j", data={}, opts={"delay": 60_000})
    await queue.jobs.cancel(job_id, "withdrawn")
    await node.call("eventsWait", handle=queue.name, event="failed", count=1, limit=LIMIT)
    assert await node.call("getState", queue=queue.name, jobId=job_id) == "failed"
    seen = await node.call("getJob", queue=queue.name, jobId=job_id)
    assert seen["failedReason"] == "withdrawn"
    assert (await node.call("getJobCounts", queue=queue.name))["delayed"] == 0
    # Node may retry a job that we cancelled.
    await node.call("retry", queue=queue.name, jobId=job_id, state="failed")
    assert await node.call("getState", queue=queue.name, jobId=job_id) == "waiting"
    await node.call("eventsStop", handle=queue.name)


async def test_a_node_worker_cannot_be_asked(node: NodeDriver, queue: Queue) -> None:
    job_id: str = await node.call("add", queue=queue.name, name="j", data={}, opts={})
    await node.call("claim", queue=queue.name, token="t")
    with pytest.raises(CannotCancel):
        await queue.jobs.cancel(job_id)
    assert await node.call("getState", queue=queue.name, jobId=job_id) == "active"
    await node.call("complete", queue=queue.name, jobId=job_id, token="t", value=1)
    assert await node.call("getState", queue=queue.name, jobId=job_id) == "completed"


async def test_by_force_the_end_of_a_node_worker_is_refused(node: NodeDriver, queue: Queue) -> None:
    job_id: str = await node.call("add", queue=queue.name, name="j", data={}, opts={})
    await node.call("claim", queue=queue.name, token="t")
    await queue.jobs.cancel(job_id, "now", force=True)
    assert await node.call("getState", queue=queue.name, jobId=job_id) == "failed"
    with pytest.raises(NodeError, match=r"[Mm]issing lock|not in the active state"):
        await node.call("complete", queue=queue.name, jobId=job_id, token="t", value=1)
    assert await node.call("getState", queue=queue.name, jobId=job_id) == "failed"
    seen = await queue.jobs.get(job_id)
    assert seen is not None
    assert (seen.failed_reason, seen.category, seen.return_value) == ("now", "cancelled", None)
    counts = await node.call("getJobCounts", queue=queue.name)
    assert (counts["active"], counts["failed"]) == (0, 1)


async def test_a_parent_that_node_runs(node: NodeDriver, queue: Queue) -> None:
    """The child is cancelled; its parent follows its policy, and Node reads the reason."""
    tree = await Flow(queue, "p", children=[Flow(queue, "c", job_id="child", on_failure="ignore")]).add()
    await queue.jobs.cancel("child", "not needed")
    assert await node.call("getState", queue=queue.name, jobId=tree.id) == "waiting"
    found = await node.call("getDependencies", queue=queue.name, jobId=tree.id)
    assert "not needed" in str(found)
