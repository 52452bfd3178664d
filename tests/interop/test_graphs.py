"""Dependencies that a Node worker ends release their dependents."""

from __future__ import annotations

from typing import Any

import pytest

from oxcart import Graph, Queue, Worker
from oxcart.model import JobFailed
from oxcart.model.state import State
from tests.interop.obedient import LIMIT, obeying
from tests.nodes import NodeDriver
from tests.servers import ValkeyServer

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="session")]


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "removed"])
async def test_job_that_node_completes_releases_our_dependent(
    node: NodeDriver, queue: Queue, server: ValkeyServer, kept: bool
) -> None:
    options: dict[str, Any] = {} if kept else {"remove_on_complete": True}
    async with Queue(f"{queue.name}-ours", url=server.url) as ours:
        graph = Graph(queue)
        first = graph.job("first", {"result": 7}, **options)
        graph.job("second", {"result": 8}, queue=ours, after=[first])
        handles = await graph.add()
        await node.call("workerStart", handle=queue.name, queue=queue.name)
        async with obeying(ours):
            assert await handles[1].result(LIMIT) == 8
        await node.call("workerStop", handle=queue.name)
        assert list((await handles[1].children_values()).values()) == [7]


async def test_job_that_node_fails_fails_our_dependents(
    node: NodeDriver, queue: Queue, server: ValkeyServer
) -> None:
    async with Queue(f"{queue.name}-ours", url=server.url) as ours:
        bad = await queue.add("bad", {"fail": 9, "message": "broken"}, attempts=1)
        then = await ours.add("then", after=[bad])
        last = await ours.add("last", after=[then])
        anyway = await ours.add("anyway", {"result": 1}, after_any=[bad])
        await node.call("workerStart", handle=queue.name, queue=queue.name)
        async with obeying(ours):
            assert await anyway.result(LIMIT) == 1
            with pytest.raises(JobFailed, match="broken"):
                await last.result(LIMIT)
        await node.call("workerStop", handle=queue.name)
        assert (await bad.get()).state == (await last.get()).state == State.DEAD_LETTER


async def test_node_runs_what_waits_for_it(node: NodeDriver, queue: Queue) -> None:
    """Only Node runs the jobs of a chain; an Oxcart worker does nothing but maintenance."""
    graph = Graph(queue)
    graph.chain(("a", {"result": 1}), ("b", {"result": 2}), ("c", {"result": 3}))
    handles = await graph.add()
    await node.call("workerStart", handle=queue.name, queue=queue.name)
    keeper = Worker(queue)
    await keeper.pause()
    async with keeper.running():
        assert await handles[-1].result(LIMIT) == 3
    await node.call("workerStop", handle=queue.name)
