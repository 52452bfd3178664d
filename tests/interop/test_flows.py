"""Flows and deduplication windows that Node and Oxcart share."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from oxcart import Flow, Queue, RunningJob, Worker
from oxcart.model import FlowView, JobFailed
from tests.interop.obedient import LIMIT, Obedient, obeying
from tests.nodes import NodeDriver
from tests.servers import ValkeyServer

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="session")]

FLOWS = int(os.environ.get("OXCART_FLOWS", "120"))


@pytest_asyncio.fixture(loop_scope="session")
async def parents(queue: Queue, server: ValkeyServer) -> AsyncIterator[Queue]:
    async with Queue(f"{queue.name}-parents", url=server.url) as parents:
        yield parents


def tree(queue: Queue, parents: Queue) -> Flow:
    """Three generations over two queues."""
    return Flow(parents, "top", {"children": True}).after(
        Flow(queue, "leaf", {"result": 1}),
        Flow(parents, "middle", {"result": 2}).after(Flow(queue, "leaf", {"result": 3}, priority=4)),
        Flow(queue, "leaf", {"fail": 9, "message": "ignored"}, attempts=1, on_failure="ignore"),
    )


@pytest.mark.parametrize("runs_children", ["node", "ours"])
async def test_a_flow_of_ours_is_run_by_both(
    node: NodeDriver, queue: Queue, parents: Queue, runs_children: str
) -> None:
    handle = await tree(queue, parents).add()
    theirs, ours = (queue, parents) if runs_children == "node" else (parents, queue)
    await node.call("workerStart", handle=queue.name, queue=theirs.name)
    async with obeying(ours):
        assert await handle.result(LIMIT) == [1, 2]
    await node.call("workerStop", handle=queue.name)
    seen = await node.call("getDependencies", queue=parents.name, jobId=handle.id)
    assert seen["counts"] == {"processed": 2, "unprocessed": 0, "ignored": 1, "failed": 0}
    assert list(seen["ignored"].values()) == ["ignored"]
    assert await handle.ignored_failures() == seen["ignored"]
    assert await handle.children_values() == seen["processed"]


@pytest.mark.parametrize(
    ("policy", "state"),
    [("fail", "failed"), ("continue", "completed"), ("ignore", "completed"), ("remove", "completed")],
)
async def test_node_obeys_our_policies(
    node: NodeDriver, queue: Queue, parents: Queue, policy: str, state: str
) -> None:
    handle = await (
        Flow(parents, "top", {"result": "fine"})
        .after(Flow(queue, "leaf", {"fail": 9}, attempts=1, on_failure=policy))
        .add()
    )
    for one in (queue, parents):
        await node.call("workerStart", handle=one.name, queue=one.name)
    if state == "completed":
        assert await handle.result(LIMIT) == "fine"
    else:
        with pytest.raises(JobFailed, match="failed"):
            await handle.result(LIMIT)
    for one in (queue, parents):
        await node.call("workerStop", handle=one.name)
    assert await node.call("getState", queue=parents.name, jobId=handle.id) == state


async def test_both_see_the_same_tree(node: NodeDriver, queue: Queue, parents: Queue) -> None:
    def shape(one: FlowView) -> dict[str, Any]:
        children = sorted(map(shape, one.children), key=lambda child: str(child["id"]))
        return {"id": one.job.id, "queue": one.job.queue, "children": children}

    def ordered(one: dict[str, Any]) -> dict[str, Any]:
        return {**one, "children": sorted(map(ordered, one["children"]), key=lambda child: str(child["id"]))}

    ours = await tree(queue, parents).add()
    theirs = await node.call(
        "addFlow",
        flow={
            "name": "top",
            "queueName": parents.name,
            "children": [
                {"name": "leaf", "queueName": queue.name},
                {
                    "name": "middle",
                    "queueName": parents.name,
                    "children": [{"name": "leaf", "queueName": queue.name}],
                },
            ],
        },
    )
    async with obeying(queue):
        async with asyncio.timeout(LIMIT):
            while (await queue.counts())["completed"] < 4:
                await asyncio.sleep(0.01)
    for job_id in (ours.id, theirs["id"]):
        mine = await parents.flows.get(job_id)
        assert mine is not None
        assert ordered(await node.call("getFlow", queue=parents.name, jobId=job_id)) == shape(mine)


async def test_node_removes_a_flow_of_ours(
    node: NodeDriver, queue: Queue, parents: Queue, server: ValkeyServer
) -> None:
    handle = await tree(queue, parents).add()
    assert await node.call("remove", queue=parents.name, jobId=handle.id) == 1
    left = {key for key in server.client().scan_iter(f"bull:{queue.name}*") if ":ox:" not in key}
    assert {key.rpartition(":")[2] for key in left} <= {"events", "id", "meta", "marker", "pc"}


async def test_many_flows_of_both_and_every_parent_once(
    node: NodeDriver, queue: Queue, parents: Queue, server: ValkeyServer
) -> None:
    """Trees of both producers, workers of both kinds on both queues, failures and retries among them."""
    rand = random.Random(7)
    expected: dict[str, Any] = {}
    for number in range(FLOWS):
        values = sorted(rand.choices(range(100), k=rand.randint(1, 6)))
        fails = [rand.random() < 0.15 for _ in values]
        late = {"delay": rand.randrange(3)}
        if number % 2:
            handle = await (
                Flow(parents, "top", {"children": True}, priority=rand.choice([0, 3]))
                .after(
                    *(
                        Flow(queue, "leaf", {"result": v, "fail": int(f), **late}, attempts=2, backoff="5ms")
                        for v, f in zip(values, fails, strict=True)
                    )
                )
                .add()
            )
            expected[handle.id] = values
            continue
        children = [
            {
                "name": "leaf",
                "queueName": queue.name,
                "data": {"result": v, "fail": int(f), **late},
                "opts": {"attempts": 2, "backoff": {"type": "fixed", "delay": 5}},
            }
            for v, f in zip(values, fails, strict=True)
        ]
        top = {"name": "top", "queueName": parents.name, "data": {"children": True}, "children": children}
        expected[(await node.call("addFlow", flow=top))["id"]] = values
    handlers = Obedient()
    for one in (queue, parents):
        await node.call("workerStart", handle=one.name, queue=one.name, options={"concurrency": 4})
        one.fallback(handlers)
    async with Worker(queue, parents, concurrency=8).running():
        for job_id, values in expected.items():
            assert sorted(await parents.jobs.handle(job_id).result(LIMIT)) == values
    stats = [await node.call("workerStop", handle=one.name) for one in (queue, parents)]
    runs = Counter(run["id"] for one in stats for run in one["runs"])
    runs.update(job_id for job_id, _ in handlers.runs)
    assert {job_id: runs[job_id] for job_id in expected} == dict.fromkeys(expected, 1)
    stream: Any = server.client().xrange(f"bull:{parents.name}:events")
    released = Counter(fields["jobId"] for _, fields in stream if fields.get("prev") == "waiting-children")
    assert released == dict.fromkeys(expected, 1)


# ------------------------------------------------------------------------------------------- windows


async def test_a_window_holds_for_both(node: NodeDriver, queue: Queue) -> None:
    async def theirs(data: int, **rule: Any) -> str:
        opts = {"deduplication": {"id": "d", **rule}}
        job_id: str = await node.call("add", queue=queue.name, name="j", data=data, opts=opts)
        return job_id

    ours = await queue.add("j", 1, deduplication="d")
    assert await theirs(2) == ours.id
    assert await node.call("removeDeduplicationKey", queue=queue.name, key="d") == 1
    first = await theirs(3)
    again = await queue.add("j", 4, deduplication="d")
    assert (again.id, again.created) == (first, False)
    assert await node.call("getDeduplicationJobId", queue=queue.name, key="d") == first
    assert await queue.deduplication.release("d") is True
    assert await node.call("getDeduplicationJobId", queue=queue.name, key="d") is None
    running, release = asyncio.Event(), asyncio.Event()

    async def handler(job: RunningJob) -> None:
        if job.data == 5:
            running.set()
            await release.wait()

    queue.fallback(handler)
    async with Worker(queue).running(), queue.events(names=["deduplicated"]) as events:
        last = await queue.add("j", 5, deduplication="d")
        async with asyncio.timeout(LIMIT):
            await running.wait()
        assert await theirs(6) == last.id
        release.set()
        await last.result(LIMIT)
        (seen,) = await events.read()
        assert seen.job_id == last.id
    assert await theirs(7) != last.id


async def test_node_makes_a_job_of_what_we_kept(node: NodeDriver, queue: Queue) -> None:
    if tuple(int(part) for part in node.version.split(".")[:2]) < (5, 72):
        pytest.skip(f"BullMQ {node.version} does not know keepLastIfActive")
    rule = {"id": "d", "keep_last_if_active": True}
    first = await queue.add("j", {"hold": True, "result": 1}, deduplication=rule)
    await node.call("workerStart", handle=queue.name, queue=queue.name)
    await node.call("workerWait", handle=queue.name, runs=1, limit=LIMIT)
    for n in (2, 3):
        kept = await queue.add("j", {"result": n}, deduplication=rule, job_id=f"kept-{n}")
        assert (kept.id, kept.created) == (first.id, False)
    await node.call("workerRelease", handle=queue.name)
    assert await first.result(LIMIT) == 1
    assert await queue.jobs.handle("kept-3").result(LIMIT) == 3
    await node.call("workerStop", handle=queue.name)
    assert await queue.jobs.get("kept-2") is None


async def test_a_child_that_node_made_a_window_for(node: NodeDriver, queue: Queue, parents: Queue) -> None:
    """5.62 lets children have windows, and a deduplicated child is not added. We run the others."""
    if node.version.startswith("6"):
        pytest.skip("BullMQ 6 refuses it")
    ran = asyncio.Event()

    async def handler(job: RunningJob) -> None:
        if job.name == "leaf":
            ran.set()

    for one in (queue, parents):
        one.fallback(handler)
    leaf = {"name": "leaf", "queueName": queue.name, "opts": {"deduplication": {"id": "w"}}}
    top = {"name": "top", "queueName": parents.name, "children": [leaf]}
    added = await node.call("addFlow", flow=top)
    async with Worker(queue, parents).running():
        await parents.jobs.handle(added["id"]).result(LIMIT)
    assert ran.is_set()
    assert await queue.deduplication.owner("w") is None
