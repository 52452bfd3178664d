"""Dependencies on a cluster: in one slot they work, over several they are refused before any write."""

from __future__ import annotations

import pytest

from oxcart import Graph, Queue, RunningJob, Worker
from oxcart.model.errors import CrossSlotError
from tests.cluster.conftest import Masters


async def test_graph_over_two_slots_is_refused(masters: Masters) -> None:
    here, there = masters.cluster.nodes[:2]
    one, other = (Queue(masters.queue_on(node), url=masters.url) for node in (here, there))
    graph = Graph(one)
    graph.job("then", queue=other, after=[graph.job("first")])
    with pytest.raises(CrossSlotError, match=r"two slots of the cluster; give them a prefix with a hash tag"):
        await graph.add()
    assert masters.all_keys() == []
    await one.close()
    await other.close()


@pytest.mark.parametrize("prefix", ["{bull}", "bull"])
async def test_graph_in_one_slot_runs(masters: Masters, prefix: str) -> None:
    """Two queues that share the tag of their prefix, or one queue with a tag of its own."""
    first = Queue("first", url=masters.url, prefix=prefix)
    then = Queue("then", url=masters.url, prefix=prefix) if "{" in prefix else first

    async def run(job: RunningJob) -> str:
        return job.name

    for queue in {first, then}:
        queue.fallback(run)
    graph = Graph(first)
    middle = graph.fan_out(graph.job("top"), [("left", None), ("right", None)])
    graph.fan_in("join", after=middle, queue=then)
    jobs = await graph.add()
    async with Worker(*{first, then}).running():
        assert await jobs[-1].result(20) == "join"
    for queue in {first, then}:
        await queue.close()
