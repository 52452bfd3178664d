"""Lanes on a cluster: they are in the slot of their queue, and its workers serve them."""

from __future__ import annotations

import pytest

from oxcart import Queue, RunningJob, Worker
from oxcart.broker.slots import slot_of
from oxcart.model.target import Abilities, Target
from tests.cluster.conftest import Masters


@pytest.mark.parametrize("name", ["video", "{tag}video"])
async def test_lanes_live_in_the_slot_of_their_queue(masters: Masters, name: str) -> None:
    async with Queue(name, url=masters.url) as queue:

        @queue.fallback
        async def run(job: RunningJob) -> str:
            return job.queue

        targets = [Target(capabilities="gpu"), Target(region="{eu}"), None]
        handles = await queue.add_many([("n", None, {"target": target}) for target in targets])
        async with Worker(queue, abilities=Abilities(capabilities="gpu", region="{eu}")).running():
            for handle in handles:
                assert await handle.result(20) == name
            late = await queue.add("n", target=targets[1])
            assert await late.result(20) == name
        assert (await queue.counts())["completed"] == 4
        slot = queue._core.broker.slot
    keys = [key for key in masters.all_keys() if "video" in key]
    assert any("}@all;c=gpu:" in key or "video@all;c=gpu:" in key for key in keys)
    assert {slot_of(key) for key in keys} == {slot}
