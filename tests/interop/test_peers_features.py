"""Features that only Node requests and our workers obey: flows, deduplication, limits, lost workers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oxcart import Queue, RunningJob, Worker
from oxcart.broker.port import Ask, Outcome, OutcomeKind
from oxcart.model.errors import JobFailed
from tests.interop.obedient import LIMIT, Obedient, obeying
from tests.nodes import NodeDriver, node_driver, versions
from tests.servers import ValkeyServer

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="session")]


# ------------------------------------------------------------------------------------------- flows


def flow(queue: Queue, parents: Queue, children: list[dict[str, Any]], **opts: Any) -> dict[str, Any]:
    """A parent in one queue whose children are in another."""
    return {
        "name": "parent",
        "queueName": parents.name,
        "data": {"result": "parent"},
        "opts": opts,
        "children": [
            {
                "name": "child",
                "queueName": queue.name,
                "data": child.get("data", {}),
                "opts": child.get("opts", {}),
            }
            for child in children
        ],
    }


@pytest.mark.parametrize("runs_children", ["node", "ours"])
async def test_a_flow_of_nodes_is_run_by_both(
    node: NodeDriver, queue: Queue, server: ValkeyServer, runs_children: str
) -> None:
    """One side runs the children, the other the parent: it starts after them and has their values."""
    async with Queue(f"{queue.name}-parents", url=server.url) as parents:
        children = [{"data": {"result": {"n": n}, "delay": 5}} for n in range(3)]
        tree = await node.call("addFlow", flow=flow(queue, parents, children))
        assert await parents.jobs.state(tree["id"]) == "waiting-children"
        with_children, with_parent = (parents, queue) if runs_children == "node" else (queue, parents)
        await node.call("workerStart", handle=queue.name, queue=with_parent.name)
        async with obeying(with_children):
            assert await parents.jobs.handle(tree["id"]).result(LIMIT) == "parent"
        await node.call("workerStop", handle=queue.name)
        values = server.client().hgetall(f"bull:{parents.name}:{tree['id']}:processed")
        assert values == {
            f"bull:{queue.name}:{child['id']}": f'{{"n":{n}}}' for n, child in enumerate(tree["children"])
        }
        assert server.client().exists(f"bull:{parents.name}:{tree['id']}:dependencies") == 0


@pytest.mark.parametrize(
    ("policy", "state", "reason"),
    [
        ("failParentOnFailure", "failed", "child bull:{child} failed"),
        ("ignoreDependencyOnFailure", "completed", None),
        ("removeDependencyOnFailure", "completed", None),
        ("continueParentOnFailure", "completed", None),
    ],
)
async def test_a_failed_child_affects_its_parent_as_in_node(
    node: NodeDriver, queue: Queue, server: ValkeyServer, policy: str, state: str, reason: str | None
) -> None:
    async with Queue(f"{queue.name}-parents", url=server.url) as parents:
        tree = await node.call(
            "addFlow", flow=flow(queue, parents, [{"data": {"fail": 9}, "opts": {policy: True}}])
        )
        for one in (queue, parents):
            one.fallback(Obedient())
        async with Worker(queue, parents).running():
            job = parents.jobs.handle(tree["id"])
            if reason is None:
                assert await job.result(LIMIT) == "parent"
            else:
                expected = reason.format(child=f"{queue.name}:{tree['children'][0]['id']}")
                with pytest.raises(JobFailed) as failed:
                    await job.result(LIMIT)
                assert failed.value.reason == expected
        assert await node.call("getState", queue=parents.name, jobId=tree["id"]) == state


async def test_a_job_that_keeps_the_last_of_its_kind(node: NodeDriver, queue: Queue) -> None:
    """Since 5.72 an add during a run of the same window is kept and becomes a job at its end, as with us."""
    if tuple(int(part) for part in node.version.split(".")[:2]) < (5, 72):
        pytest.skip(f"BullMQ {node.version} does not know keepLastIfActive")
    holding, release = asyncio.Event(), asyncio.Event()
    ran: list[Any] = []

    async def handler(job: RunningJob) -> None:
        ran.append(job.data)
        holding.set()
        await release.wait()

    queue.fallback(handler)
    opts = {"deduplication": {"id": "d", "keepLastIfActive": True}}
    async with Worker(queue).running(), queue.events() as events:
        first = await node.call("add", queue=queue.name, name="j", data=1, opts=opts)
        await asyncio.wait_for(holding.wait(), LIMIT)
        for n in (2, 3):
            assert await node.call("add", queue=queue.name, name="j", data=n, opts=opts) == first
        release.set()
        ends = 0
        async with asyncio.timeout(LIMIT):
            while ends < 2:
                ends += sum(event.name == "completed" for event in await events.read())
    assert ran == [1, 3]


# ------------------------------------------------------------------------------------------- limits


async def test_the_concurrency_of_a_queue_holds_for_both(node: NodeDriver, queue: Queue) -> None:
    await node.call("setGlobalConcurrency", queue=queue.name, concurrency=3)
    jobs = await queue.add_many([("j", {"delay": 10}) for _ in range(30)])
    await node.call("workerStart", handle=queue.name, queue=queue.name, options={"concurrency": 5})
    async with obeying(queue, concurrency=10), queue.events("0") as events:
        running: set[str] = set()
        most = ended = 0
        async with asyncio.timeout(LIMIT):
            while ended < len(jobs):
                for event in await events.read():
                    if event.name == "active":
                        running.add(f"{event.job_id}")
                        most = max(most, len(running))
                    elif event.name == "completed":
                        running.discard(f"{event.job_id}")
                        ended += 1
    await node.call("workerStop", handle=queue.name)
    assert most == 3


async def test_the_rate_limit_of_a_queue_holds_for_ours(node: NodeDriver, queue: Queue) -> None:
    """At most five in any window of 400 ms, by the times that the events carry."""
    await node.call("setGlobalRateLimit", queue=queue.name, max=5, duration=400)
    jobs = await queue.add_many([("j", {}) for _ in range(14)])
    async with obeying(queue, concurrency=10), queue.events("0") as events:
        starts: list[int] = []
        ended = 0
        async with asyncio.timeout(LIMIT):
            while ended < len(jobs):
                for event in await events.read():
                    if event.name == "active":
                        starts.append(event.timestamp)
                    ended += event.name == "completed"
    # The window opens with its first job; the sixth job after any job opens a later one.
    assert all(later - first >= 395 for first, later in zip(starts[::5], starts[5::5], strict=False))


# ------------------------------------------------------------------------------------------- lost workers


@pytest.mark.parametrize("version", versions())
async def test_a_job_of_a_dead_node_worker_is_run_by_ours(
    queue: Queue, server: ValkeyServer, version: str
) -> None:
    async with node_driver(version, server.url) as doomed:
        options = {"lockDuration": 300, "name": "doomed", "skipStalledCheck": True}
        await doomed.call("workerStart", handle="w", queue=queue.name, options=options)
        job = await queue.add("j", {"delay": 60_000, "result": "saved"})
        await doomed.call("workerWait", handle="w", runs=1, limit=LIMIT)
        await doomed.kill()
    await job.update_data({"result": "saved"})
    async with obeying(queue, name="ox", renew_every=0.2, stalled_interval=0.2) as worker:
        assert await job.result(LIMIT) == "saved"
    seen = await job.get()
    assert (seen.stalled_count, seen.attempts_started, seen.worker_id) == (1, 2, "ox")
    assert worker.runs == [(job.id, 0)]


async def test_a_job_of_a_lost_worker_of_ours_is_run_by_node(node: NodeDriver, queue: Queue) -> None:
    """Our worker claims the job and is lost; Node's check recovers it, and our late finish is refused."""
    job = await queue.add("j", {"result": "saved"})
    claim = (await queue._core.broker.claim(Ask(lock_ms=200, worker="lost"))).jobs[0]
    options = {"stalledInterval": 250, "name": "nd"}
    await node.call("workerStart", handle=queue.name, queue=queue.name, options=options)
    assert await job.result(LIMIT) == "saved"
    await node.call("workerStop", handle=queue.name)
    codes, _ = await queue._core.broker.finish(
        [Outcome(OutcomeKind.COMPLETED, claim.id, claim.token, claim.starts, claim.started_ms, b'"late"')]
    )
    assert codes[0] in (-2, -3)
    seen = await node.call("getJob", queue=queue.name, jobId=job.id)
    assert (seen["returnvalue"], seen["stalledCounter"], seen["attemptsStarted"]) == ("saved", 1, 2)
