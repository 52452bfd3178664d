"""Partitions with peers: a partition is a queue that a Node worker serves and a Node producer fills."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from oxcart import Queue, RunningJob, Worker
from oxcart.model.partitions import partition_of
from oxcart.model.state import State
from tests.nodes import NodeDriver
from tests.servers import ValkeyServer
from tests.signals import eventually

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="session")]

LIMIT = 60.0
SIZE, THEIRS = 3, 1


def keys_of(number: int, count: int) -> list[str]:
    """Returns partition keys that lead to a partition."""
    return [key for n in range(1000) if partition_of(key := f"k{n}", SIZE) == number][:count]


async def test_node_serves_a_partition_alone(node: NodeDriver, queue: Queue, server: ValkeyServer) -> None:
    async with Queue(queue.name, url=server.url, partitions=SIZE) as parted:
        [key] = keys_of(THEIRS, 1)
        again = await parted.add("n", {"fail": 1, "result": 7}, partition_key=key, attempts=2, backoff="10ms")
        bad = await parted.add("n", {"fail": 9}, partition_key=key, attempts=1)
        theirs = f"{queue.name}#{THEIRS}"
        await node.call("workerStart", handle=theirs, queue=theirs)
        assert await again.result(LIMIT) == 7, "an event of the partition ends the wait"
        await node.call("workerWait", handle=theirs, finished=2)
        await node.call("workerStop", handle=theirs)
        assert (await again.get()).attempts_made == 2
        assert (await bad.get()).state is State.DEAD_LETTER
        assert (await parted.counts())["completed"] == 1
        assert await parted.jobs.retry_all() == 1
        assert await bad.state() == "waiting"


async def test_a_mixed_fleet_runs_jobs_of_all_partitions_once(
    node: NodeDriver, queue: Queue, server: ValkeyServer
) -> None:
    ran: Counter[str] = Counter()
    async with Queue(queue.name, url=server.url, partitions=SIZE) as parted:

        @parted.fallback
        async def work(job: RunningJob) -> None:
            ran[f"{job.queue} {job.id}"] += 1
            await asyncio.sleep(0.001)

        theirs = f"{queue.name}#{THEIRS}"
        await parted.partitions.layout()
        await node.call("workerStart", handle=theirs, queue=theirs, options={"concurrency": 2})
        async with Worker(parted, concurrency=3).running():
            ours = [
                await parted.add("n", {"delay": 2}, partition_key=key)
                for number in range(SIZE)
                for key in keys_of(number, 20)
            ]
            added = []
            for number in range(SIZE):  # a producer in Node computes the partition
                jobs = [{"name": "n", "data": {"delay": 2}} for _ in range(10)]
                added += await node.call("addBulk", queue=f"{queue.name}#{number}", jobs=jobs)

            async def done() -> bool:
                return (await parted.counts())["completed"] == 90

            await eventually(done, "all have run", LIMIT)
        stats = await node.call("workerStop", handle=theirs)
        ran.update(f"{theirs} {run['id']}" for run in stats["runs"])
        assert max(ran.values()) == 1
        assert sum(ran.values()) == 90
        assert {(await handle.get()).state for handle in ours} == {State.COMPLETED}
        assert len(await parted.jobs.list("completed", limit=200)) == 90
        assert len(added) == 30
