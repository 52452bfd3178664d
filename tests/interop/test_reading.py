"""Each side reads the other's queue like its own: workers, counts, pages, events, states."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from oxcart import Event, Queue, Worker
from tests.interop.obedient import LIMIT, Obedient, obeying
from tests.nodes import NodeDriver
from tests.servers import ValkeyServer

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="session")]


async def listed(node: NodeDriver, queue: str, count: int) -> list[str]:
    """Waits for a number of workers and returns their names as Node lists them."""
    async with asyncio.timeout(LIMIT):
        while True:
            found: list[dict[str, Any]] = await node.call("getWorkers", queue=queue)
            if len(found) == count:
                return sorted(worker["rawname"].partition(":w:")[2] for worker in found)
            await asyncio.sleep(0.02)


@asynccontextmanager
async def nodes_worker(node: NodeDriver, queue: str, **options: Any) -> AsyncIterator[None]:
    await node.call("workerStart", handle=queue, queue=queue, options=options)
    try:
        yield
    finally:
        await node.call("workerStop", handle=queue)


async def test_node_finds_a_worker_of_ours_on_each_of_its_queues(
    node: NodeDriver, queue: Queue, server: ValkeyServer
) -> None:
    queues = [queue]
    async with AsyncExitStack() as stack:
        for name in ("zwei", "три", "🐂"):
            queues.append(await stack.enter_async_context(Queue(f"{queue.name} {name}", url=server.url)))
        for one in queues:
            one.fallback(Obedient())
        async with Worker(*queues, name="ox").running():
            for one in queues:
                assert await listed(node, one.name, 1) == ["ox"]
            # Side by side with Node's, and a worker without a name shows its id.
            nameless = Worker(*queues)
            async with nodes_worker(node, queue.name, name="nd"), nameless.running():
                assert await listed(node, queue.name, 3) == sorted(["nd", "ox", nameless.id])
                assert await listed(node, queues[-1].name, 2) == sorted(["ox", nameless.id])
        for one in queues:
            assert await listed(node, one.name, 0) == []


async def test_a_worker_may_have_any_name(node: NodeDriver, queue: Queue) -> None:
    """A server refuses connection names with spaces or beyond ASCII; the worker is listed all the same."""
    async with obeying(queue, name="the 2nd wörker"):
        assert await listed(node, queue.name, 1) == ["the%202nd%20w%C3%B6rker"]
        job = await queue.add("j", {"result": 1})
        assert await job.result(LIMIT) == 1
    assert (await job.get()).worker_id == "the 2nd wörker"


async def test_a_prefix_that_no_connection_name_can_hold_does_no_harm(queue: Queue) -> None:
    async with (
        Queue(queue.name, server=queue._core.server, prefix="my app") as other,
        obeying(other) as worker,
    ):
        jobs = [await other.add("j", {"result": n}) for n in range(3)]
        assert [await job.result(LIMIT) for job in jobs] == [0, 1, 2]
        assert len(worker.runs) == 3


async def populate(node: NodeDriver, queue: Queue) -> dict[str, list[str]]:
    """Adds jobs of both sides in every state; none changes by itself any more."""

    async def add(by: str, data: dict[str, Any] | None = None, **options: Any) -> str:
        if by == "node":
            added: str = await node.call("add", queue=queue.name, name="n", data=data or {}, opts=options)
            return added
        if "delay" in options:
            options["delay"] = f"{options['delay']}ms"
        return (await queue.add("n", data or {}, attempts=1, **options)).id

    both = ("node", "ours")
    ids: dict[str, list[str]] = {"completed": [], "failed": []}
    async with obeying(queue), queue.events() as events:
        for by in both:
            ids["completed"] += [await add(by), await add(by)]
            ids["failed"] += [await add(by, {"fail": 1})]
        ends = 0
        async with asyncio.timeout(LIMIT):
            while ends < 6:
                ends += sum(event.name in ("completed", "failed") for event in await events.read())
    ids["active"] = [await add(by) for by in both]
    for _ in both:
        await node.call("claim", queue=queue.name, token="t")
    ids["delayed"] = [await add(by, delay=3_600_000 + n) for n, by in enumerate(both * 2)]
    ids["prioritized"] = [await add(by, priority=n + 1) for n, by in enumerate(both)]
    ids["waiting"] = [await add(by) for by in both * 3]
    return ids


async def test_counts_pages_and_states_are_the_same_for_both(node: NodeDriver, queue: Queue) -> None:
    ids = await populate(node, queue)

    async def compare() -> None:
        theirs = await node.call("getJobCounts", queue=queue.name)
        theirs["waiting"] += theirs.pop("paused", 0)  # 5.x counts them separately
        counts = await queue.counts()
        assert counts == {state: theirs.get(state, 0) for state in counts}
        assert {state: count for state, count in counts.items() if count} == {
            state: len(jobs) for state, jobs in ids.items()
        }
        for state, jobs in ids.items():
            names = ["waiting", "paused"] if state == "waiting" else [state]
            for oldest in (True, False):
                page = await queue.jobs.list(state, oldest=oldest)
                assert [job.id for job in page] == await node.call(
                    "getJobs", queue=queue.name, types=names, asc=oldest
                )
                assert {job.id for job in page} == set(jobs)
            for job_id in jobs:
                seen = await node.call("getState", queue=queue.name, jobId=job_id)
                assert await queue.jobs.state(job_id) == seen == state

    await compare()
    await queue.pause()
    assert await node.call("isPaused", queue=queue.name)
    if node.version.startswith("5."):
        await compare()
    else:  # 6.x does not look into the list of paused jobs until it resumes
        assert (await node.call("getJobCounts", queue=queue.name))["waiting"] == 0
        assert (await queue.counts())["waiting"] == len(ids["waiting"])
    await node.call("resume", queue=queue.name)
    assert not await queue.is_paused()
    await compare()


async def test_events_of_either_side_are_heard_by_both(node: NodeDriver, queue: Queue) -> None:
    """Node's QueueEvents and ours return the same events with the same values."""
    await node.call("eventsStart", handle=queue.name, queue=queue.name)
    async with queue.events() as events:
        async with obeying(queue):
            data = {"progress": {"done": 3}, "result": {"x": ["ü", None]}}
            first = await node.call("add", queue=queue.name, name="by node", data=data)
            second = (await queue.add("by us", {"fail": 1, "message": "bad ✗"}, attempts=1)).id
            third = (await queue.add("later", {"progress": 7}, delay="10ms")).id
            story: list[Event] = []
            async with asyncio.timeout(LIMIT):
                while sum(event.name in ("completed", "failed") for event in story) < 3:
                    story += await events.read()
        heard = await node.call("eventsWait", handle=queue.name, count=_without_drained(story), limit=LIMIT)
        async with asyncio.timeout(LIMIT):
            # Events after the last end (`drained`) may still be missing.
            while _without_drained(story) < len(heard):
                story += await events.read()
    await node.call("eventsStop", handle=queue.name)

    by_id = {event.id: event for event in story}
    assert {one["event"] for one in heard} >= {
        "added",
        "waiting",
        "active",
        "progress",
        "completed",
        "failed",
    }
    for one in heard:
        event = by_id[one["id"]]
        assert event.name == one["event"]
        assert event.job_id == one.get("jobId")
        assert event.prev == one.get("prev")
        assert event.data == one.get("data")
        assert event.return_value == one.get("returnvalue")
        assert event.failed_reason == one.get("failedReason")
        assert event.delay == (int(one["delay"]) if "delay" in one else None)
    ends = {(event.job_id, event.name) for event in story if event.name in ("completed", "failed")}
    assert ends == {(first, "completed"), (second, "failed"), (third, "completed")}


def _without_drained(story: list[Event]) -> int:
    # Node's listener receives `drained` without fields, and the driver does not keep it.
    return sum(event.name != "drained" for event in story)
