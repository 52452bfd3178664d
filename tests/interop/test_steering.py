"""Each side changes the other's jobs: progress, logs, data, priority, delay, retry, removal."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oxcart import Queue, RunningJob, Worker
from oxcart.model.errors import JobFailed, JobLocked, JobNotFound, WrongState
from tests.interop.obedient import LIMIT, obeying
from tests.nodes import NodeDriver, NodeError

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="session")]


async def add(node: NodeDriver, queue: Queue, by: str, data: Any = None, **options: Any) -> str:
    """Adds a job through ``node`` or ``ours``, with options under Node's names."""
    if by == "node":
        added: str = await node.call("add", queue=queue.name, name="j", data=data or {}, opts=options)
        return added
    if "delay" in options:
        options["delay"] = f"{options['delay']}ms"
    return (await queue.add("j", data or {}, attempts=1, **options)).id


@pytest.mark.parametrize("by", ["node", "ours"])
async def test_progress_logs_and_data_from_the_other_side(node: NodeDriver, queue: Queue, by: str) -> None:
    job_id = await add(node, queue, by, {"v": 1})
    job = queue.jobs.handle(job_id)

    async def theirs() -> dict[str, Any]:
        seen: dict[str, Any] = await node.call("getJob", queue=queue.name, jobId=job_id)
        return seen

    progress: Any
    for progress in (0, 33.3, 100, {"done": 1, "of": ["ü", 2]}):
        await job.update_progress(progress)
        assert (await theirs())["progress"] == progress
    # Node may write values that we would refuse; they are read unchanged.
    for progress in (50, 4000, "half", True, {"a": {"b": None}}):
        await node.call("updateProgress", queue=queue.name, jobId=job_id, progress=progress)
        assert (await job.get()).progress == progress

    assert await node.call("log", queue=queue.name, jobId=job_id, row="by node ✓") == 1
    assert await job.log("by us ✓", "and\nagain") == 3
    assert await job.logs() == ["by node ✓", "by us ✓", "and\nagain"]
    logs = await node.call("getLogs", queue=queue.name, jobId=job_id)
    assert logs == {"logs": await job.logs(), "count": 3}

    await job.update_data({"v": 2})
    assert (await theirs())["data"] == {"v": 2}
    await node.call("updateData", queue=queue.name, jobId=job_id, data={"result": "new"})
    assert (await job.get()).data == {"result": "new"}
    async with obeying(queue):
        assert await job.result(LIMIT) == "new"


async def test_progress_and_logs_of_our_handler_reach_node_at_once(node: NodeDriver, queue: Queue) -> None:
    """Progress and logs of a running job arrive at once, and a retry sees data changed meanwhile."""
    await node.call("eventsStart", handle=queue.name, queue=queue.name)
    seen: list[Any] = []

    async def handler(job: RunningJob) -> str:
        seen.append(job.data)
        if job.attempt == 1:
            await job.update_progress(10)
            await job.log("first")
            # Node receives the events while the attempt runs, and changes the data of the job meanwhile.
            await node.call("eventsWait", handle=queue.name, event="progress", count=1, limit=LIMIT)
            assert (await node.call("getLogs", queue=queue.name, jobId=job.id))["logs"] == ["first"]
            await node.call("updateData", queue=queue.name, jobId=job.id, data={"v": "from node"})
            raise RuntimeError("again")
        return "done"

    queue.fallback(handler)
    async with Worker(queue).running():
        job_id = await node.call("add", queue=queue.name, name="j", data={"v": 1}, opts={"attempts": 2})
        assert await queue.jobs.handle(job_id).result(LIMIT) == "done"
    await node.call("eventsStop", handle=queue.name)
    assert seen == [{"v": 1}, {"v": "from node"}]


@pytest.mark.parametrize("by", ["node", "ours"])
async def test_retry_from_the_other_side(node: NodeDriver, queue: Queue, by: str) -> None:
    """One side retries a job that the other failed; it completes, and then runs once more."""
    job_id = await add(node, queue, by, {"fail": 1, "message": "bad"})
    job = queue.jobs.handle(job_id)

    async def retry(state: str) -> None:
        if by == "node":
            await job.retry()
        else:
            await node.call("retry", queue=queue.name, jobId=job_id, state=state)

    async with obeying(queue) as worker:
        with pytest.raises(JobFailed, match="bad"):
            await job.result(LIMIT)
        for state in ("failed", "completed"):
            await retry(state)
            assert await job.result(LIMIT) is None
        assert worker.runs == [(job_id, 0), (job_id, 1), (job_id, 2)]
    theirs = await node.call("getJob", queue=queue.name, jobId=job_id)
    assert theirs["attemptsMade"] == 3
    with pytest.raises(WrongState):
        await queue._core.broker.retry_job(job_id, "failed")
    with pytest.raises(NodeError) as refused:
        await node.call("retry", queue=queue.name, jobId=job_id, state="failed")
    assert refused.value.code == -3


@pytest.mark.parametrize("by", ["node", "ours"])
async def test_order_is_changed_from_the_other_side(node: NodeDriver, queue: Queue, by: str) -> None:
    ids = [await add(node, queue, by, priority=5) for _ in range(3)]
    delayed = await add(node, queue, by, delay=3_600_000)
    later = await add(node, queue, by, delay=3_600_000)
    if by == "node":
        await queue.jobs.handle(ids[2]).change_priority(1)
        await queue.jobs.handle(ids[1]).change_priority(5, lifo=True)
        await queue.jobs.handle(delayed).promote()
        await queue.jobs.handle(later).change_delay(0)
    else:
        call, name = node.call, queue.name
        await call("changePriority", queue=name, jobId=ids[2], priority=1)
        await call("changePriority", queue=name, jobId=ids[1], priority=5, lifo=True)
        await call("promote", queue=name, jobId=delayed)
        await call("changeDelay", queue=name, jobId=later, delay=0)
    async with obeying(queue) as worker:
        for job_id in (*ids, delayed, later):
            await queue.jobs.handle(job_id).result(LIMIT)
    assert [job_id for job_id, _ in worker.runs] == [delayed, later, ids[2], ids[1], ids[0]]


async def test_a_job_leased_by_the_other_side_can_be_neither_removed_nor_finished(
    node: NodeDriver, queue: Queue
) -> None:
    """Each side respects the leases of the other."""
    theirs, ours = await add(node, queue, "ours"), await add(node, queue, "node")
    assert (await node.call("claim", queue=queue.name, token="nodes"))["job"]["id"] == theirs
    with pytest.raises(JobLocked):
        await queue.jobs.remove(theirs)

    holding, release = asyncio.Event(), asyncio.Event()

    async def handler(job: RunningJob) -> str:
        holding.set()
        await release.wait()
        return "ours"

    queue.fallback(handler)
    async with Worker(queue).running():
        await asyncio.wait_for(holding.wait(), LIMIT)
        assert await node.call("remove", queue=queue.name, jobId=ours) == 0
        with pytest.raises(NodeError) as refused:
            await node.call("complete", queue=queue.name, jobId=ours, token="nodes", value=1)
        assert refused.value.code == -6
        release.set()
        assert await queue.jobs.handle(ours).result(LIMIT) == "ours"
    await node.call("complete", queue=queue.name, jobId=theirs, token="nodes", value="node's")
    assert await queue.jobs.handle(theirs).result(LIMIT) == "node's"

    await queue.jobs.remove(theirs)
    assert await node.call("getJob", queue=queue.name, jobId=theirs) is None
    assert await node.call("remove", queue=queue.name, jobId=ours) == 1
    assert await queue.jobs.get(ours) is None
    with pytest.raises(JobNotFound):
        await queue.jobs.remove(ours)
