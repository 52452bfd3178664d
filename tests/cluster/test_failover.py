"""A master with a replica is killed under load: work continues, and nothing replicated is lost.

`make failover` kills every master in turn, several times, at full length.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest

from oxcart import Queue, Worker
from oxcart.broker.connection import Server
from oxcart.events import QueueEvents
from oxcart.model.event import Event
from tests.cluster.conftest import Masters
from tests.cluster.losses import Losses
from tests.cluster.test_moving import take_over
from tests.servers import ValkeyCluster, ValkeyServer, wait_until

#: How often a master is killed.
KILLS = int(os.environ.get("OXCART_FAILOVERS", "1"))
#: Seconds within which work must resume. Measured at full length, because a CI machine may pause for a while.
GOES_ON = 10.0 if "OXCART_FAILOVERS" in os.environ else 60.0


@pytest.fixture
def cluster() -> Iterator[ValkeyCluster]:
    with ValkeyCluster(replicas=1, node_timeout=2000) as cluster:
        yield cluster


@pytest.mark.timeout(120 + 60 * KILLS)
@pytest.mark.parametrize("protocol", ["bullmq", "bridge"])
async def test_a_master_killed_under_load(cluster: ValkeyCluster, protocol: str) -> None:
    masters = Masters(cluster)
    for number in range(KILLS):
        dead = cluster.nodes[number % 3]
        heir = cluster.replicas_of(dead)[0]
        name = masters.queue_on(dead)
        with contextlib.closing(dead.client()) as old, contextlib.closing(heir.client()) as new:
            # Only the first address is configured: the others are learnt, and one of them survives.
            url = "redis+cluster://" + f"127.0.0.1:{dead.port}"
            if protocol == "bridge":
                queue = Queue(
                    "load", url=url, protocol="bridge", namespace=name, add_timeout=90
                )  # of the same hash tag
            else:
                queue = Queue(name, url=url, add_timeout=90)
            losses = Losses(queue, old, new)
            async with losses.running():
                await losses.goes_on()
                await losses.replicated()
                await asyncio.to_thread(dead.kill)
                await losses.goes_on(GOES_ON)
            await losses.judge()
        if number < KILLS - 1:
            await asyncio.to_thread(dead.start)
            await asyncio.to_thread(_give_back, cluster, dead)


async def test_idle_workers_and_other_queues(cluster: ValkeyCluster) -> None:
    """Workers that wait on the dead master continue, and so do workers with queues elsewhere."""
    masters = Masters(cluster)
    queues = [Queue(masters.queue_on(node), url=cluster.url, add_timeout=90) for node in cluster.nodes]

    async def work() -> str:
        return "done"

    for queue in queues:
        queue.fallback(work)
    async with Worker(*queues, concurrency=3).running():
        for queue in queues:
            assert await (await queue.add("job")).result(GOES_ON) == "done"
        async with queues[0].events() as events:
            await asyncio.to_thread(cluster.nodes[0].kill)
            handles = [await queue.add("job") for queue in queues]
            assert [await handle.result(GOES_ON) for handle in handles] == ["done"] * 3
            seen = await _until_completed(events)
            assert seen[-1].job_id == handles[0].id
    for queue in queues:
        await queue.close()


async def _until_completed(events: QueueEvents) -> list[Event]:
    seen = []
    async for event in events:
        seen.append(event)
        if event.name == "completed":
            break
    return seen


async def test_nodes_that_were_not_named_are_learnt(cluster: ValkeyCluster) -> None:
    first = cluster.nodes[0]
    server = Server(f"redis+cluster://127.0.0.1:{first.port}")
    before = await server.endpoint(16000)
    await asyncio.to_thread(first.kill)
    server.forget_slots()
    assert (await server.endpoint(16000)).port == before.port
    assert len(await server.master_slots()) == 3


async def test_leases_are_renewed_though_the_only_node_that_was_named_is_dead(cluster: ValkeyCluster) -> None:
    """The renewer connects late and receives the nodes that its worker has learnt."""
    named, other = cluster.nodes[:2]
    url = f"redis+cluster://127.0.0.1:{named.port}"
    renewed, begun = asyncio.Event(), asyncio.Event()
    async with Queue(Masters(cluster).queue_on(other), url=url) as queue:

        @queue.fallback
        async def work() -> str:
            begun.set()
            await renewed.wait()
            return "done"

        async with Worker(queue, lock_duration=8).running() as worker:
            handle = await queue.add("job")
            await begun.wait()
            await asyncio.to_thread(named.kill)
            worker._leases._renewed = lambda *args: renewed.set()
            assert await handle.result(60) == "done"


def _give_back(cluster: ValkeyCluster, master: ValkeyServer) -> None:
    """Makes a node that was killed the master of its slots again."""
    with contextlib.closing(master.client()) as plain:
        client: Any = plain
        wait_until(
            lambda: client.info("replication").get("master_link_status") == "up", "it follows its heir"
        )

        take_over(client)
    cluster.wait_ok()
