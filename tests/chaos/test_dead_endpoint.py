"""One of several masters is dead or silent: the queues of the other masters continue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from oxcart import Queue, Worker
from tests.chaos.lengths import LIMIT
from tests.cluster.conftest import Masters
from tests.servers import ValkeyCluster, ValkeyServer

#: Queues on the dead master. Each of them used to cost a worker a second.
DEAD = 20
#: Seconds in which a job of the live queue must end; a call that hangs costs one of them.
PROMPT = 6.0


@pytest.fixture
def cluster() -> Iterator[ValkeyCluster]:
    # Without replicas, and with a timeout so long that no node counts as failed during the test.
    with ValkeyCluster(node_timeout=60_000, cluster_require_full_coverage=False) as cluster:
        yield cluster


def queue_of(protocol: str, name: str, url: str) -> Queue:
    """A queue in the slot of a name, on both protocols."""
    if protocol == "bridge":
        return Queue("load", url=url, protocol="bridge", namespace=name, add_timeout=60)
    return Queue(name, url=url, add_timeout=60)


async def work() -> str:
    return "done"


async def runs_promptly(live: Queue) -> None:
    for _ in range(3):
        began = time.monotonic()
        assert await (await live.add("job")).result(LIMIT) == "done"
        assert time.monotonic() - began < PROMPT


@pytest.mark.parametrize("protocol", ["bullmq", "bridge"])
@pytest.mark.parametrize("fault", ["killed", "frozen"])
async def test_a_live_queue_goes_on_beside_twenty_on_a_dead_master(
    cluster: ValkeyCluster, protocol: str, fault: str
) -> None:
    masters = Masters(cluster)
    dead, alive = cluster.nodes[1:]
    lost = [queue_of(protocol, masters.queue_on(dead), cluster.url) for _ in range(DEAD)]
    live = queue_of(protocol, masters.queue_on(alive), cluster.url)
    for queue in (*lost, live):
        queue.fallback(work)
    async with Worker(*lost, live, concurrency=5).running():
        assert await (await lost[-1].add("job")).result(LIMIT) == "done"
        await asyncio.to_thread(dead.kill if fault == "killed" else dead.freeze)
        await runs_promptly(live)
        await asyncio.to_thread(dead.start if fault == "killed" else dead.thaw)
        await asyncio.to_thread(cluster.wait_ok)
        for queue in (lost[0], lost[-1]):
            assert await (await queue.add("job")).result(LIMIT) == "done"
    for queue in (*lost, live):
        await queue.close()


async def test_a_worker_that_starts_beside_a_dead_server_serves_the_live_queue() -> None:
    with ValkeyServer() as dead, ValkeyServer() as alive:
        lost = [Queue(f"lost-{number}", url=dead.url) for number in range(DEAD)]
        live = Queue("live", url=alive.url)
        for queue in (*lost, live):
            queue.fallback(work)
        dead.freeze()
        async with Worker(*lost, live, concurrency=5).running():
            await runs_promptly(live)
            dead.thaw()
            assert await (await lost[-1].add("job")).result(LIMIT) == "done"
        for queue in (*lost, live):
            await queue.close()
