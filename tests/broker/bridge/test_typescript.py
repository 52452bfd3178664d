"""A namespace shared with workers that behave like the TypeScript client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from oxcart import Queue, Worker
from oxcart.broker.bridge.records import read_record
from oxcart.model.errors import JobFailed
from oxcart.model.target import Abilities, Target
from tests.broker.bridge.conftest import Desk
from tests.broker.bridge.typescript import TypeScriptClient, now
from tests.conftest import MakeQueue


@pytest.fixture
def client(store: redis.Redis) -> TypeScriptClient:
    return TypeScriptClient(store)


@pytest.fixture
def emails(make_queue: MakeQueue) -> Queue:
    return make_queue("email", protocol="bridge", namespace="bridge")


async def test_a_job_finishes_though_its_last_worker_removes_it_from_the_active_set(
    desk: Desk, client: TypeScriptClient
) -> None:
    """That client unlocks a failed job before removing it; another worker may hold the job by then."""
    job_id = await desk.add()
    taken = client.take()
    assert taken is not None
    claimed: list[Any] = []
    loop = asyncio.get_running_loop()
    client.between = lambda: claimed.extend(
        asyncio.run_coroutine_threadsafe(desk.claim(), loop).result(timeout=20)
    )
    await asyncio.to_thread(client.fail, taken)
    (job,) = claimed
    assert job.id == job_id
    assert not desk.store.sismember("bridge:jobs:active", job_id)
    assert await desk.end(job) == 1
    assert desk.status(job_id) == "completed"
    assert desk.counter() == 0
    assert desk.store.hlen("bridge:ox:held") == 0
    assert desk.store.smembers("bridge:ox:active:email") == set()


async def test_a_worker_finishes_a_job_that_was_removed_from_the_active_set(emails: Queue) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handle(job: Any) -> str:
        begun.set()
        await go_on.wait()
        return "done"

    emails.fallback(handle)
    job = await emails.add("email", {})
    async with Worker(emails, name="w1").running():
        async with asyncio.timeout(20):
            await begun.wait()
        await emails._core.broker.caller.command("SREM", "bridge:jobs:active", job.id)
        await emails._core.broker.recover(interval_ms=1)  # the result of maintenance
        go_on.set()
        assert await job.result(timeout=20) == "done"
    assert await emails.counts() == {**dict.fromkeys(await emails.counts(), 0), "completed": 1}


async def test_maintenance_puts_a_held_job_back_into_the_active_set(desk: Desk) -> None:
    """Otherwise no worker would recover the job if its worker were lost."""
    job = await desk.active()
    desk.store.srem("bridge:jobs:active", job.id)
    await desk.broker().recover()
    assert desk.store.smembers("bridge:jobs:active") == {job.id}
    assert desk.counter() == 1
    desk.store.delete(f"bridge:jobs:lock:{job.id}", "bridge:ox:checking")
    assert (await desk.broker(worker="w2").recover()).ids == [job.id]
    assert desk.waiting() == [job.id]


async def test_a_worker_that_has_just_registered_keeps_its_job(desk: Desk, client: TypeScriptClient) -> None:
    """Its first heartbeat comes after ten seconds; until then `lastSeen` speaks for it."""
    client.register()
    desk.foreign("f1", push="")
    desk.store.sadd("bridge:jobs:active", "f1")
    desk.store.set("bridge:jobs:lock:f1", client.id, ex=30)
    for _ in range(2):
        assert (await desk.broker().recover()).ids == []
        desk.store.delete("bridge:ox:checking")
        desk.store.zadd("bridge:ox:suspects", {"f1": now() - 5000}, xx=True)
    desk.store.set("bridge:workers:node-1", f'{{"lastSeen":{now() - 31_000}}}')
    desk.store.zadd("bridge:ox:suspects", {"f1": now() - 5000})
    assert (await desk.broker().recover()).ids == ["f1"]


@pytest.mark.parametrize("record", ['{"lastSeen":%d}', "[[[", '{"lastSeen":"soon"}', "7"])
async def test_a_worker_without_a_valid_heartbeat_is_lost(desk: Desk, record: str) -> None:
    job = await desk.active()
    desk.store.sadd("bridge:workers:active", "w1")
    desk.store.set("bridge:workers:w1", record.replace("%d", str(now() + 3_600_000)))
    assert (await desk.broker().recover()).ids == [job.id]


async def test_a_target_without_a_mode_means_any(desk: Desk) -> None:
    desk.broker(abilities=Abilities("w1", capabilities="gpu", region="eu"))
    either = desk.foreign("either", target={"capabilities": ["gpu", "tpu"], "region": ["us"]})
    desk.foreign("neither", target={"capabilities": ["tpu"], "region": ["us"]})
    mine = desk.foreign("mine", target={"server": "w1"})
    assert {job.id for job in await desk.claim(9)} == {either, mine}
    assert read_record(b'{"target":{"server":"w1"}}').lane == str(Target(server="w1")), "one lane for both"


async def test_a_failure_that_is_retried_is_no_end(emails: Queue, client: TypeScriptClient) -> None:
    """That client leaves a result with every failure."""
    job = await emails.add("email", {}, attempts=1)
    taken = client.take()
    assert taken is not None
    client.fail(taken)
    assert not (await emails._core.broker.ended(job.id)).finished
    again = client.take()
    assert again is not None
    assert again["attempts"] == 1, "it counts failures, and so runs once more"
    client.fail(again, "boom again")
    with pytest.raises(JobFailed, match="boom again"):
        await job.result(timeout=20)
