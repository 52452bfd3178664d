"""Fair groups beside Node's workers: they see jobs whose turn it is, and limits of groups hold."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from oxcart import Queue, RunningJob, Worker
from oxcart.broker.port import Ask, Outcome, OutcomeKind
from oxcart.model.state import State
from tests.nodes import NodeDriver
from tests.signals import eventually

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="session")]

#: How many jobs that are let through stay ready.
WINDOW = 20


def rows(group: str, many: int) -> list[Any]:
    return [("n", n, {"group": group}) for n in range(many)]


async def test_node_alone_runs_what_is_let_through_and_loses_nothing(node: NodeDriver, queue: Queue) -> None:
    handles = await queue.add_many([*rows("a", 30), *rows("b", 5)])
    await node.call("workerStart", handle=queue.name, queue=queue.name)
    await node.call("workerWait", handle=queue.name, finished=WINDOW)
    assert (await node.call("getJobCounts", queue=queue.name))["delayed"] == 15
    await queue._core.broker.promote()  # a tick of ours lets the rest through
    await node.call("workerWait", handle=queue.name, finished=35)
    await node.call("workerStop", handle=queue.name)
    assert [(await handle.get()).state for handle in handles] == [State.COMPLETED] * 35


async def test_a_limit_of_groups_holds_for_jobs_that_node_takes(node: NodeDriver, queue: Queue) -> None:
    await queue.groups.set_all(concurrent=2)
    await queue.add_many(rows("a", 6))
    ready = await node.call("getJobCounts", queue=queue.name)
    assert (ready["waiting"], ready["delayed"]) == (2, 4), "a place is taken when a job is let through"
    await node.call("workerStart", handle=queue.name, queue=queue.name)
    await node.call("workerWait", handle=queue.name, finished=2)
    await node.call("workerStop", handle=queue.name)
    assert (await queue._core.broker.claim(Ask(9))).jobs == [], "their places are not known to be free yet"
    await queue._core.broker.caller.command("ZADD", f"bull:{queue.name}:ox:opening", 0, "g:a")
    await queue._core.broker.promote()  # five seconds later
    assert len((await queue._core.broker.claim(Ask(9))).jobs) == 2


async def retry_one_of(node: NodeDriver, queue: Queue) -> tuple[str, str]:
    """Lets Node fail the first of two jobs of a group that runs one at once; returns both ids."""
    await queue.groups.set_all(concurrent=1)
    retry: dict[str, Any] = {"attempts": 2, "backoff": {"type": "fixed", "delay": 2000}}
    first = await queue.add("n", {"fail": 1}, group="a", **retry)
    second = await queue.add("n", {"hold": True}, group="a")
    await node.call("workerStart", handle=queue.name, queue=queue.name, options={"concurrency": 5})

    async def failed() -> bool:
        found = (await node.call("getJob", queue=queue.name, jobId=first.id))["attemptsMade"]
        return bool(found == 1)

    await eventually(failed, "Node has failed the job")
    return first.id, second.id


async def look_at_limits(queue: Queue) -> None:
    """A tick of ours, at which the group's limit is checked."""
    await queue._core.broker.caller.command("ZADD", f"bull:{queue.name}:ox:opening", 0, "g:a")
    await queue._core.broker.promote()


async def test_a_job_that_node_retries_later_keeps_its_place(node: NodeDriver, queue: Queue) -> None:
    first, second = await retry_one_of(node, queue)
    await look_at_limits(queue)
    stats = await node.call("workerWait", handle=queue.name, finished=1)
    assert [run["id"] for run in stats["runs"]] == [first, first], "the other waits for its place"
    await look_at_limits(queue)
    stats = await node.call("workerWait", handle=queue.name, runs=3)
    assert stats["runs"][2]["id"] == second
    await node.call("workerRelease", handle=queue.name)
    await node.call("workerStop", handle=queue.name)


async def test_a_changed_limit_counts_a_job_that_node_retries_later(node: NodeDriver, queue: Queue) -> None:
    first, _ = await retry_one_of(node, queue)
    await queue.groups.set("a", concurrent=1)
    stats = await node.call("workerWait", handle=queue.name, finished=1)
    assert [run["id"] for run in stats["runs"]] == [first, first]
    await node.call("workerStop", handle=queue.name)


async def test_our_promotion_puts_a_retried_job_into_its_group(node: NodeDriver, queue: Queue) -> None:
    """In the list a Node worker would start it beside the job that was let through meanwhile."""
    await queue.groups.set_all(concurrent=1)
    first = await queue.add("n", group="a", attempts=2, backoff={"type": "fixed", "delay": 60_000})
    second = await queue.add("n", group="a")
    broker = queue._core.broker
    [job] = (await broker.claim(Ask(1, lock_ms=30_000))).jobs
    await broker.finish(
        [
            Outcome(
                OutcomeKind("d"), job.id, job.token, job.starts, broker.clock(), b"x", b"[]", delay_ms=60_000
            )
        ],
        Ask(0),
    )
    await broker.caller.command("ZADD", f"bull:{queue.name}:delayed", 1, first.id)
    await broker.promote()
    claimed = [
        (await node.call("claim", queue=queue.name, token=token, worker={}))["job"] for token in ("1", "2")
    ]
    assert [found and found["id"] for found in claimed] == [second.id, None]
    await node.call("complete", queue=queue.name, jobId=second.id, token="1", value=1, worker={})
    await look_at_limits(queue)
    assert [found.id for found in (await broker.claim(Ask(9))).jobs] == [first.id]


async def test_a_mixed_fleet_runs_every_job_once(node: NodeDriver, queue: Queue) -> None:
    ran: Counter[str] = Counter()

    @queue.fallback
    async def work(job: RunningJob) -> None:
        ran[job.id] += 1
        await asyncio.sleep(0.001)

    plain: list[Any] = [{"name": "n", "data": {}} for _ in range(20)]
    await node.call("workerStart", handle=queue.name, queue=queue.name)
    async with Worker(queue, concurrency=5).running():
        await queue.add_many([*rows("hog", 150), *rows("a", 10), *rows("b", 10)])
        await node.call("addBulk", queue=queue.name, jobs=plain)

        async def done() -> bool:
            return (await queue.counts())["completed"] == 190

        await eventually(done, "all have run", 60)
    await node.call("workerStop", handle=queue.name)
    assert max(ran.values()) == 1
