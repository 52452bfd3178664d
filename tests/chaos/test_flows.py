"""Flows under faults: killed workers and lost replies. Every parent is released once."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter

from oxcart import Flow, Queue
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.connection import Server
from oxcart.model.flow import OnFailure, Tree
from oxcart.model.options import JobOptions
from tests.chaos.fleet import Fleet, Store, eventually
from tests.chaos.lengths import LEASE, LIMIT
from tests.chaos.proxy import Proxy
from tests.chaos.test_lost_answers import _CutFirst
from tests.servers import ValkeyServer

TREES = 80
CHILDREN = 5


def _released(store: Store) -> Counter[str]:
    """Counts the releases of each parent."""
    releases = [event for event in store.events() if event.get("prev") == "waiting-children"]
    return Counter(event["jobId"] for event in releases)


async def _begun(fleet: Fleet, count: int) -> None:
    await eventually(lambda: len(fleet.starts()) >= count, f"{count} have begun")


async def test_every_parent_is_released_once_while_workers_are_killed(
    server: ValkeyServer, store: Store, fleet: Fleet
) -> None:
    async with Queue("chaos", url=server.url, attempts=100) as queue:
        victim = await fleet.start(concurrency=10, max_stalled=100)
        tops = []
        for n in range(TREES):
            leaves = [Flow(queue, "nap", {"seconds": 0.02}, priority=n % 3) for _ in range(CHILDREN)]
            tops.append(await Flow(queue, "nap", {"seconds": 0}).after(*leaves).add())
        for turn in range(3):
            await _begun(fleet, (turn + 1) * TREES * CHILDREN // 5)
            heir = await fleet.start(concurrency=10, max_stalled=100)
            victim.signal(signal.SIGKILL)
            victim = heir
        await eventually(
            lambda: store.lengths() == {"completed": TREES * (CHILDREN + 1)},
            "all jobs have ended",
            4 * LEASE + LIMIT,
        )
        assert _released(store) == dict.fromkeys((top.id for top in tops), 1)
        for top in tops:
            assert (await top.dependency_counts()).processed == CHILDREN
        assert store.client.zcard(store.prefix + "waiting-children") == 0


async def test_a_tree_is_added_once_though_the_answer_is_lost(server: ValkeyServer, store: Store) -> None:
    async with Proxy(server.port) as proxy:
        broker = BullMQBroker(Server(proxy.url), "chaos")
        store.client.script_load(load("add_flow").text)
        proxy.cut_if(_CutFirst("add_flow"))
        leaves = tuple(Tree("chaos", "bull", "nap", n) for n in range(3))
        window = JobOptions.build(deduplication="d")
        added = await broker.flows.add(Tree("chaos", "bull", "nap", None, window, OnFailure.FAIL, leaves))
        assert proxy.cuts["add_flow"] == 1
        assert (added.created, len(added.children)) == (True, 3)
        assert store.lengths() == {"wait": 3}
        assert store.client.get(store.prefix + "id") == "4"
        assert not store.count_events("duplicated")
        assert not store.count_events("deduplicated")
        await broker.close()


async def test_a_parent_that_waits_does_so_once_though_the_answer_is_lost(
    server: ValkeyServer, store: Store, fleet: Fleet
) -> None:
    """The finish that makes it wait is repeated; the repeat must not remove it from its set."""
    async with Proxy(server.port) as proxy, Queue("chaos", url=server.url) as queue:
        await fleet.start(url=proxy.url)
        store.client.script_load(load("finish").text)
        proxy.cut_if(_CutFirst("finish"))
        top = await queue.add("grow", {"children": 3})
        assert await asyncio.wait_for(top.result(), LIMIT) == 3
        # The wait, the finishes of the children (perhaps in one call), and the last finish.
        assert proxy.cuts["finish"] >= 3, "every finish was answered twice"
        assert _released(store) == {top.id: 1}
        assert fleet.starts()[top.id] == 2
