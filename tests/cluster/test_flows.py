"""Flows on a cluster: in one slot they work, over several they are refused before any write."""

from __future__ import annotations

from typing import Any

import pytest

from oxcart import Flow, Queue, RunningJob, WaitForChildren, Worker
from oxcart.model.errors import CrossSlotError
from tests.cluster.conftest import Masters


async def test_flow_over_two_slots_is_refused(masters: Masters) -> None:
    here, there = masters.cluster.nodes[:2]
    one, other = (Queue(masters.queue_on(node), url=masters.url) for node in (here, there))
    with pytest.raises(CrossSlotError, match=r"two slots of the cluster; give them a prefix with a hash tag"):
        await Flow(one, "top").after(Flow(one, "a"), Flow(one, "b").after(Flow(other, "c"))).add()
    assert masters.all_keys() == []
    await one.close()
    await other.close()


async def test_children_in_another_slot(masters: Masters) -> None:
    here, there = masters.cluster.nodes[:2]
    one, other = (Queue(masters.queue_on(node), url=masters.url) for node in (here, there))

    @one.job(attempts=1)
    async def parent(job: RunningJob) -> str:
        with pytest.raises(CrossSlotError):
            await job.add_children(*(Flow(one, "never") for _ in range(600)), Flow(other, "never"))
        return "nothing was added"

    async with Worker(one).running():
        assert await (await parent.enqueue()).result(30) == "nothing was added"
    assert (await one.counts())["waiting"] == 0
    await one.close()
    await other.close()


@pytest.mark.parametrize("prefix", ["{bull}", "bull"])
async def test_flow_in_one_slot_runs(masters: Masters, prefix: str) -> None:
    """Two queues that share the tag of their prefix, or one queue with a tag of its own."""
    parents = Queue("parents", url=masters.url, prefix=prefix)
    children = Queue("children", url=masters.url, prefix=prefix) if "{" in prefix else parents

    @children.job
    async def child(n: int) -> int:
        return n

    @parents.job
    async def parent(job: RunningJob) -> Any:
        if (await job.dependency_counts()).total < 3:
            await job.add_children(child.flow(3))
            return WaitForChildren()
        return sum((await job.children_values()).values())

    handle = await parent.flow().after(child.flow(1), child.flow(2)).add()
    seen = await parents.flows.get(handle.id)
    assert seen is not None
    assert {one.job.queue for one in seen.children} == {children.name}
    queues = (parents,) if parents is children else (parents, children)
    async with Worker(*queues).running():
        assert await handle.result(30) == 6
    for queue in queues:
        await queue.close()
