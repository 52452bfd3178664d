"""Operations on a queue shared with Node: each side reads what the other counts, publishes or leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from oxcart import Queue
from oxcart.broker.bullmq import bulk
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.port import Ask, Outcome, OutcomeKind
from oxcart.model.options import JobOptions
from tests.interop.obedient import LIMIT, obeying
from tests.nodes import NodeDriver
from tests.servers import ValkeyServer
from tests.signals import eventually

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="session")]

MINUTE = 60_000


@pytest.fixture
def store(server: ValkeyServer) -> redis.Redis:
    return server.client()


class TestMetrics:
    async def test_node_reads_our_series(self, node: NodeDriver, queue: Queue, server: ValkeyServer) -> None:
        start = 1_700_000_040_000
        broker = BullMQBroker(queue._core.server, queue.name, clock=lambda: start)
        jobs = [broker.encode("n", None, JobOptions.build()) for _ in range(9)]
        await broker.add(jobs)
        claimed = (await broker.claim(Ask(9))).jobs
        for job, minute in zip(claimed, (0, 0, 1, 4, 4, 4, 5, 5, 5), strict=True):
            end = Outcome(OutcomeKind.COMPLETED, job.id, job.token, job.starts, start + minute * MINUTE, b"1")
            await broker.finish([end], Ask(0, metrics=60))
        ours = await broker.metrics.series("completed")
        await broker.close()
        theirs = await node.call("getMetrics", queue=queue.name, state="completed")
        assert theirs["data"] == ours.points == [3, 0, 0, 1, 2]
        assert theirs["count"] == ours.total == 5
        assert theirs["meta"] == {"count": 9, "prevTS": start + 5 * MINUTE, "prevCount": 6}

    async def test_we_read_the_series_of_a_node_worker(self, node: NodeDriver, queue: Queue) -> None:
        await queue.add_many([("n", {"unrecoverable": number == 0}) for number in range(5)], attempts=1)
        handle = f"metrics {queue.name}"
        options = {"metrics": {"maxDataPoints": 10}}
        await node.call("workerStart", handle=handle, queue=queue.name, options=options)
        await node.call("workerWait", handle=handle, finished=5)
        await node.call("workerStop", handle=handle)
        for state, count in (("completed", 4), ("failed", 1)):
            ours = await queue.jobs.metrics(state)
            theirs = await node.call("getMetrics", queue=queue.name, state=state)
            assert (ours.count, ours.points) == (count, theirs["data"])
            assert (ours.previous_at, ours.previous_count) == (
                theirs["meta"]["prevTS"],
                theirs["meta"]["prevCount"],
            )

    async def test_both_count_in_one_series(self, node: NodeDriver, queue: Queue) -> None:
        await queue.add_many([("n", {})] * 4)
        handle = f"both {queue.name}"
        options = {"metrics": {"maxDataPoints": 10}}
        await node.call("workerStart", handle=handle, queue=queue.name, options=options)
        async with obeying(queue, metrics=10):
            await eventually(lambda: _completed(queue, 4), "all jobs have ended")
        await node.call("workerStop", handle=handle)
        assert (await queue.jobs.metrics()).count == 4


class TestOwnEvents:
    async def test_node_receives_events_that_we_publish(self, node: NodeDriver, queue: Queue) -> None:
        handle = f"hears {queue.name}"
        listening: dict[str, Any] = {"handle": handle, "queue": queue.name, "from": "0"}
        await node.call("eventsStart", **listening)
        event_id = await queue.events.publish("deployed", version="1.2 ✓", hosts=["a", "b"])
        seen = await node.call("eventsWait", handle=handle, event="deployed", count=1)
        await node.call("eventsStop", handle=handle)
        (event,) = (one for one in seen if one["event"] == "deployed")
        assert event == {"event": "deployed", "id": event_id, "version": "1.2 ✓", "hosts": '["a","b"]'}

    async def test_we_receive_events_that_node_publishes(self, node: NodeDriver, queue: Queue) -> None:
        async with queue.events(names=["deployed"]) as events:
            published = {"eventName": "deployed", "version": "1.2 ✓", "count": 3}
            await node.call("publishEvent", queue=queue.name, event=published)
            async with asyncio.timeout(LIMIT):
                event = await anext(aiter(events))
        assert (event.name, event.fields) == ("deployed", {"version": "1.2 ✓", "count": "3"})


class TestSharedQueues:
    async def test_jobs_that_node_added_are_cleaned_drained_and_retried(
        self, node: NodeDriver, queue: Queue
    ) -> None:
        for number in range(6):
            data = {"fail": 9} if number < 3 else {}
            await node.call("add", queue=queue.name, name="n", data=data, opts={})
        handle = f"shared {queue.name}"
        await node.call("workerStart", handle=handle, queue=queue.name)
        await node.call("workerWait", handle=handle, finished=6)
        await node.call("workerStop", handle=handle)
        assert await queue.jobs.retry_all() == 3
        counts = await node.call("getJobCounts", queue=queue.name, types=["wait", "failed", "completed"])
        assert counts == {"wait": 3, "failed": 0, "completed": 3}
        assert await queue.jobs.clean("completed") == 3
        assert await queue.jobs.clear() == 3
        assert not any((await node.call("getJobCounts", queue=queue.name)).values())

    async def test_a_node_worker_goes_on_while_the_queue_is_cleaned(
        self, node: NodeDriver, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bulk, "STEP", 5)
        await queue.add_many([("n", {"unrecoverable": True})] * 40)
        handle = f"meanwhile {queue.name}"
        await node.call("workerStart", handle=handle, queue=queue.name, options={"concurrency": 5})
        removed = 0
        while removed < 40:
            removed += await queue.jobs.clean("failed")
        stats = await node.call("workerStop", handle=handle)
        assert len(stats["failed"]) == 40
        assert stats["errors"] == []

    async def test_a_node_worker_serves_a_queue_that_was_obliterated(
        self, node: NodeDriver, queue: Queue, store: redis.Redis
    ) -> None:
        handle = f"again {queue.name}"
        await node.call("workerStart", handle=handle, queue=queue.name)
        await (await queue.add("n", {"result": 1})).result(LIMIT)
        await eventually(lambda: store.llen(f"bull:{queue.name}:active") == 0, "nothing is held")
        assert await queue.jobs.obliterate() == 1
        assert await (await queue.add("n", {"result": 2})).result(LIMIT) == 2
        await node.call("workerStop", handle=handle)

    async def test_node_counts_priorities_as_we_do(self, node: NodeDriver, queue: Queue) -> None:
        for priority in (0, 1, 7, 7, 2_097_151):
            await queue.add("n", priority=priority)
        ours = await queue.jobs.counts_per_priority()
        theirs = await node.call("getCountsPerPriority", queue=queue.name, priorities=list(ours))
        assert {int(priority): count for priority, count in theirs.items()} == ours

    async def test_children_go_back_to_their_parents(self, node: NodeDriver, queue: Queue) -> None:
        """BullMQ 6 does so too; 5.62.0 does not for bulk retries."""
        child: dict[str, Any] = {"name": "c", "queueName": queue.name, "data": {"unrecoverable": True}}
        child["opts"] = {"ignoreDependencyOnFailure": True, "jobId": "child"}
        other = {"name": "c", "queueName": f"{queue.name}-other", "data": {}, "opts": {"jobId": "other"}}
        parent = {
            "name": "p",
            "queueName": queue.name,
            "opts": {"jobId": "parent"},
            "children": [child, other],
        }
        await node.call("addFlow", flow=parent)
        async with obeying(queue):
            await eventually(lambda: _is_failed(queue, "child"), "the child has failed")
        assert await queue.jobs.retry_all() == 1
        pending = await node.call("getDependencies", queue=queue.name, jobId="parent")
        assert len(pending["unprocessed"]) == 2


async def _completed(queue: Queue, count: int) -> bool:
    return (await queue.counts())["completed"] == count


async def _is_failed(queue: Queue, job_id: str) -> bool:
    return await queue.jobs.state(job_id) == "failed"
