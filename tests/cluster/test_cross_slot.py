"""Calls over several slots raise a typed error before any write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from oxcart import Queue, RunningJob, Worker
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.connection import Server
from oxcart.broker.port import Ask, Outcome, OutcomeKind
from oxcart.model.errors import CrossSlotError
from oxcart.model.options import JobOptions
from oxcart.model.retention import Retention
from tests.chaos.fleet import eventually
from tests.cluster.conftest import Masters


def test_an_untagged_layout_is_refused(masters: Masters) -> None:
    with pytest.raises(CrossSlotError, match="no hash tag"):
        BullMQBroker(Server(masters.url), "video", tagged=False)
    assert masters.all_keys() == []


@pytest.mark.parametrize("node", [0, 1, 2])
@pytest.mark.parametrize("name", ["video", "mail", "{tagged}"])
async def test_a_cluster_taken_for_a_single_server_is_refused(masters: Masters, name: str, node: int) -> None:
    """A plain URL leads to a node of a cluster: keys would have no tag and be in any slot."""
    queue = Queue(name, url=masters.cluster.nodes[node].url, add_timeout=60)
    with pytest.raises(CrossSlotError, match=r"redis\+cluster://"):
        await asyncio.wait_for(queue.add("job"), 30)
    with pytest.raises(CrossSlotError):
        await asyncio.wait_for(queue.counts(), 30)
    assert masters.all_keys() == []
    await queue.close()


async def test_a_worker_on_a_cluster_taken_for_a_single_server_ends(masters: Masters) -> None:
    queue = Queue("video", url=masters.cluster.nodes[0].url)

    @queue.fallback
    async def work() -> None: ...

    with pytest.raises(CrossSlotError):
        await asyncio.wait_for(Worker(queue).run(), 30)
    assert masters.all_keys() == []


@pytest.fixture
async def child(masters: Masters) -> AsyncIterator[tuple[BullMQBroker, Any]]:
    """A queue with a job whose parent is in a slot of another master, as a peer may have made it."""
    here, there = masters.cluster.nodes[:2]
    broker = BullMQBroker(Server(masters.url), masters.queue_on(here))
    options = [JobOptions.build(job_id=name) for name in ("one", "child", "two")]
    await broker.add([broker.encode("job", None, one) for one in options])
    parent_base = f"bull:{{{masters.queue_on(there)}}}"
    parent = f'{{"id":"parent","queueKey":"{parent_base}","fpof":true}}'
    with here.client() as client:
        client.hset(
            broker.keys.job("child"), mapping={"parentKey": f"{parent_base}:parent", "parent": parent}
        )
        yield broker, client
    await broker.close()


def _dump(client: Any, broker: BullMQBroker) -> dict[str, Any]:
    keys = client.execute_command("CLUSTER", "GETKEYSINSLOT", broker.keys.slot(), 1000)
    reads = {
        "string": client.get,
        "hash": client.hgetall,
        "list": lambda key: client.lrange(key, 0, -1),
        "zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        "set": client.smembers,
        "stream": client.xrange,
    }
    ours = [key for key in keys if ":ox:call:" not in key]
    return {key: reads[client.type(key)](key) for key in ours}


@pytest.mark.parametrize("kind", ["c", "f"])
async def test_the_end_of_a_child_whose_parent_is_in_another_slot(
    child: tuple[BullMQBroker, Any], kind: str
) -> None:
    broker, _ = child
    jobs = {job.id: job for job in (await broker.claim(Ask(3))).jobs}
    now = broker.clock()

    def outcome(name: str) -> Outcome:
        job = jobs[name]
        return Outcome(OutcomeKind(kind), job.id, job.token, job.starts, now, b'"x"', b"[]")

    codes, _ = await broker.finish([outcome("one"), outcome("child"), outcome("two")])
    assert codes == [1, 2, 1], "it ends, and its neighbours do not notice"
    assert await broker.states(["child"]) == ["completed" if kind == "c" else "failed"]
    [job] = await broker.get(["child"])
    assert job is not None
    assert "non local key" in (job.unreported or "")
    # Nor do they notice a finish whose retention removes the child.
    await broker.add([broker.encode("job", None, JobOptions.build(job_id="three"))])
    [three] = (await broker.claim(Ask())).jobs
    retained = Outcome(
        OutcomeKind(kind), three.id, three.token, three.starts, now + 1, b'"x"', b"[]", Retention(count=1)
    )
    assert (await broker.finish([retained]))[0] == [1]
    assert await broker.get(["child"]) == [None]


async def test_steering_a_child_whose_parent_is_in_another_slot(child: tuple[BullMQBroker, Any]) -> None:
    broker, client = child
    before = _dump(client, broker)
    with pytest.raises(CrossSlotError):
        await broker.remove_job("child")
    assert _dump(client, broker) == before
    client.lrem(broker.keys.wait(), 1, "child")
    client.zadd(broker.keys.failed(), {"child": 1})
    before = _dump(client, broker)
    with pytest.raises(CrossSlotError):
        await broker.retry_job("child", "failed")
    assert _dump(client, broker) == before


async def test_worker_continues_beside_a_child_of_another_slot(
    masters: Masters, child: tuple[BullMQBroker, Any]
) -> None:
    broker, _ = child
    queue = Queue(broker.queue, url=masters.url)
    ran: list[str] = []

    @queue.fallback
    async def work(job: RunningJob) -> None:
        ran.append(job.id)

    async with Worker(queue, concurrency=3).running():
        await eventually(lambda: len(ran) == 3, "all ran")
        await (await queue.add("job")).result(30)
        for name in ("one", "child", "two"):
            assert await queue.jobs.state(name) == "completed"
    assert len(ran) == 4, "none ran again"
    await queue.close()
