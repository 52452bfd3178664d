"""The drop-in for PyPI's bullmq on a cluster: by a redis-py client, and a flow over queues of one tag."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio.cluster import RedisCluster

from oxcart.compat.bullmq import FlowProducer, Job, Queue, QueueEvents, Worker
from tests.cluster.conftest import Masters


async def test_a_flow_and_its_workers(masters: Masters) -> None:
    node = masters.cluster.nodes[0]
    client = RedisCluster(host="127.0.0.1", port=node.port)
    options = {"connection": client, "prefix": "{drop}"}
    queue, kids = Queue("parents", options), Queue("kids", options)
    assert queue.qualifiedName == "{drop}:parents"

    async def process(job: Job, token: str) -> Any:
        return {"sum": sum((await job.getChildrenValues()).values())} if job.name == "top" else job.data

    workers = [Worker(name, process, options) for name in ("parents", "kids")]
    events = QueueEvents("parents", {**options, "lastEventId": "0-0"})
    results: asyncio.Queue[Any] = asyncio.Queue()
    events.on("completed", lambda fields, event_id: results.put_nowait(fields["returnvalue"]))
    producer = FlowProducer(options)
    children = [{"name": "kid", "queueName": "kids", "data": n} for n in (1, 2)]
    tree = await producer.add({"name": "top", "queueName": "parents", "children": children})
    assert await tree["job"].waitUntilFinished(events, 20_000) == {"sum": 3}
    async with asyncio.timeout(20):
        assert await results.get() == {"sum": 3}
    below = {"parent": {"id": tree["job"].id, "queue": queue.qualifiedName}}
    assert (await kids.add("late", 5, below)).parentKey == f"{{drop}}:parents:{tree['job'].id}"
    assert await queue.get_workers_count() == 1
    everything: list[Any] = [*workers, events, producer, queue, kids]
    for one in everything:
        await one.close()
    await client.aclose()


async def test_a_queue_gets_its_own_tag(masters: Masters) -> None:
    queue = Queue("alone", {"connection": masters.url})
    jobs = await queue.addBulk([{"name": "a", "data": n} for n in range(3)])
    assert [job.id for job in jobs] == ["1", "2", "3"]
    assert "bull:{alone}:1" in masters.all_keys()
    assert [job.data for job in await queue.getWaiting()] == [0, 1, 2]
    await queue.close()
