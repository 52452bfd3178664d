"""Workers and unroutable jobs of a namespace, as a queue shows them."""

from __future__ import annotations

import pytest
import redis

from oxcart import Queue, Worker
from oxcart.model.errors import NotSupported, ValidationError
from oxcart.model.target import Target
from oxcart.observe.lengths import QueueLengths
from oxcart.sync import Queue as SyncQueue
from tests.broker.bridge.typescript import TypeScriptClient
from tests.conftest import MakeQueue
from tests.signals import eventually


@pytest.fixture
def emails(make_queue: MakeQueue) -> Queue:
    return make_queue("email", protocol="bridge", namespace="bridge")


async def test_a_queue_lists_the_workers_that_may_take_its_jobs(
    emails: Queue, make_queue: MakeQueue, store: redis.Redis
) -> None:
    videos = make_queue("video", protocol="bridge", namespace="bridge")
    emails.fallback(lambda: None)
    TypeScriptClient(store).register()
    async with Worker(emails, name="ours", abilities={"capabilities": "gpu"}).running():
        seen = {one.id: one for one in await emails.workers.list()}
        assert set(seen) == {"ours", "node-1"}
        assert (seen["ours"].capabilities, seen["ours"].queues) == (("gpu",), ("email",))
        assert [one.id for one in await videos.workers.list()] == ["node-1"]
    assert [one.id for one in await emails.workers.list()] == ["node-1"]


async def test_a_worker_of_two_types_is_listed_for_both(emails: Queue, make_queue: MakeQueue) -> None:
    videos = make_queue("video", protocol="bridge", namespace="bridge")
    for queue in (emails, videos):
        queue.fallback(lambda: None)
    async with Worker(emails, videos, name="ours").running():
        for queue in (emails, videos):
            assert [one.queues for one in await queue.workers.list()] == [("email", "video")]


async def test_unroutable_jobs_are_counted_and_listed(emails: Queue, store: redis.Redis) -> None:
    now = await emails.add("email", {}, target=Target(capabilities="gpu"))
    later = await emails.add("email", {}, target=Target(capabilities="gpu"), delay="1h")
    await emails.add("email", {}, target=Target(stack="node"))
    TypeScriptClient(store).register()
    assert await emails.workers.unroutable() == {"all;c=gpu": 2}
    assert [job.id for job in await emails.workers.unroutable_jobs()] == [now.id]
    assert [job.id for job in await emails.workers.unroutable_jobs("delayed")] == [later.id]
    lengths = QueueLengths(emails)
    try:
        assert sum((await lengths.unroutable()).values()) == 2, "what the metric shows"
    finally:
        await lengths.close()
    with pytest.raises(ValidationError, match="state must be one of"):
        await emails.workers.unroutable_jobs("active")


async def test_unread_jobs_of_other_clients_are_unroutable_too(emails: Queue, store: redis.Redis) -> None:
    store.set("bridge:jobs:data:f1", '{"jobId":"f1","type":"email","target":{"region":["mars"]}}')
    store.rpush("bridge:jobs:waiting", "f1")
    assert await emails.workers.unroutable() == {"any;r=mars": 1}
    (job,) = await emails.workers.unroutable_jobs()
    assert (job.id, job.lane) == ("f1", "any;r=mars")


async def test_a_job_that_waits_for_another_worker_for_a_while_is_not_unroutable(
    emails: Queue, store: redis.Redis
) -> None:
    def fail() -> None:
        raise MemoryError

    emails.fallback(fail)
    await emails.add("email", {}, reroute_on=["MemoryError"], backoff="1h", attempts=2)
    async with Worker(emails, name="w1").running():
        await eventually(lambda: store.zcard("bridge:jobs:delayed"), "it failed once")
        assert await emails.workers.unroutable() == {}


async def test_the_stats_of_a_namespace(emails: Queue, store: redis.Redis, make_queue: MakeQueue) -> None:
    await emails.add("email", {})
    await emails.add("email", {}, delay="1h")
    TypeScriptClient(store).register()
    store.set("bridge:ratelimit:concurrent:email", "no number")
    seen = await emails.namespace.stats()
    assert (seen.waiting, seen.active, seen.delayed, seen.cron, seen.dead) == (1, 0, 1, 0, 0)
    assert seen.workers == {"node-1": True}
    assert seen.concurrent == {"email": 0}
    with pytest.raises(NotSupported):
        await make_queue("q").namespace.stats()


def test_stats_without_an_event_loop(url: str) -> None:
    with SyncQueue("email", url=url, protocol="bridge", namespace="bridge") as queue:
        queue.add("email", {})
        assert queue.namespace.stats().waiting == 1
        assert queue.workers.list() == []
        assert queue.workers.unroutable_jobs() == []
