"""Fair groups beside Node's workers: they see jobs whose turn it is, and limits of groups hold."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from oxcart import Queue, RunningJob, Worker
from oxcart.broker.port import Ask
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
