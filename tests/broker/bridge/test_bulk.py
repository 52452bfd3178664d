"""Operations on many jobs of a Bridge type, and cancelling."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from oxcart import Queue, Worker
from oxcart.broker.bridge.bulk import STEP
from oxcart.jobs import Cancellation
from oxcart.model.errors import (
    CannotCancel,
    JobFailed,
    JobNotFound,
    QueueBusy,
    SchedulerOwned,
    WrongState,
)
from oxcart.model.state import State
from tests.broker.bridge.typescript import TypeScriptClient
from tests.conftest import MakeQueue
from tests.signals import eventually

MANY = STEP + 10


@pytest.fixture
def emails(make_queue: MakeQueue) -> Queue:
    return make_queue("email", protocol="bridge", namespace="bridge")


@pytest.fixture
async def videos(make_queue: MakeQueue) -> Queue:
    """Another type of the namespace, whose job must stay untouched."""
    queue = make_queue("video", protocol="bridge", namespace="bridge")
    await queue.add("video", {})
    return queue


@pytest.fixture
def client(store: redis.Redis) -> TypeScriptClient:
    return TypeScriptClient(store)


async def waiting(queue: Queue) -> int:
    return (await queue.counts())["waiting"]


async def run_all(queue: Queue, count: int, how: str = "completed") -> None:
    async with Worker(queue, concurrency=20).running():
        async with asyncio.timeout(30):
            while (await queue.counts())[how] < count:
                await asyncio.sleep(0.01)


async def test_drain_removes_what_waits(emails: Queue, videos: Queue, store: Any) -> None:
    await emails.add_many([("email", n) for n in range(MANY)])
    later = await emails.add("email", {}, delay="1h")
    seen: list[Any] = []
    assert await emails.jobs.clear(progress=seen.append) == MANY
    assert (seen[-1].done, seen[-1].total) == (MANY, MANY)
    assert await emails.jobs.state(later.id) == "delayed"
    assert await emails.jobs.clear(delayed=True) == 1
    assert store.keys("bridge:jobs:data:*") == [
        f"bridge:jobs:data:{(await videos.jobs.list('waiting'))[0].id}"
    ]
    assert await waiting(videos) == 1


async def test_drain_removes_unread_jobs_of_other_clients(emails: Queue, store: Any) -> None:
    store.set("bridge:jobs:data:f1", '{"jobId":"f1","type":"email"}')
    store.rpush("bridge:jobs:waiting", "f1")
    assert await emails.jobs.clear() == 1
    assert store.keys("bridge:jobs:*") == []


async def test_clean_removes_old_jobs(emails: Queue, videos: Queue) -> None:
    emails.fallback(lambda: None)
    await emails.add_many([("email", n) for n in range(MANY)])
    await run_all(emails, MANY)
    assert await emails.jobs.clean(grace="1h") == 0
    assert await emails.jobs.clean(limit=5) == 5
    assert await emails.jobs.clean() == MANY - 5
    assert (await emails.counts())["completed"] == 0
    assert await videos.jobs.clean("waiting") == 1


async def test_clean_spares_what_a_worker_holds(emails: Queue, client: TypeScriptClient) -> None:
    job = await emails.add("email", {})
    client.store.sadd("bridge:jobs:active", job.id)
    assert client.take() is not None
    assert await emails.jobs.clean("active") == 0
    assert await emails.jobs.state(job.id) == "active"


async def test_retry_all_lets_dead_letters_run_again(emails: Queue, client: TypeScriptClient) -> None:
    ids = [(await emails.add("email", {}, attempts=1)).id for _ in range(3)]
    for _ in ids:
        job = client.take()
        assert job is not None
        job["attempts"] = 9
        client.fail(job)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert await emails.jobs.retry_all(since=tomorrow, until=tomorrow + timedelta(days=1)) == 0
    assert await emails.jobs.retry_all(limit=1) == 1
    assert await emails.jobs.retry_all(reset=True) == 2
    assert set(client.store.lrange("bridge:jobs:waiting", 0, -1)) == set(ids)
    assert client.store.llen("bridge:jobs:deadletter") == 0


async def test_promote_all_lets_delayed_jobs_run_now(emails: Queue) -> None:
    soon = await emails.add("email", {}, delay="1m")
    late = await emails.add("email", {}, delay="2h")
    assert await emails.jobs.promote_all(until=int(time.time() * 1000) + 600_000) == 1
    assert (await emails.jobs.state(soon.id), await emails.jobs.state(late.id)) == ("waiting", "delayed")
    assert await emails.jobs.promote_all(limit=5) == 1
    assert await waiting(emails) == 2


async def test_priorities_are_counted(emails: Queue, videos: Queue) -> None:
    await emails.add("email", {})
    await emails.add_many([("email", {}), ("email", {})], priority=9)
    assert await emails.jobs.counts_per_priority() == {5: 1, 9: 2}
    assert await emails.jobs.counts_per_priority([1, 9]) == {1: 0, 9: 2}


@pytest.mark.slow
async def test_jobs_in_no_list_are_removed(emails: Queue, videos: Queue, store: Any) -> None:
    job = await emails.add("email", {})
    store.delete("bridge:jobs:waiting")
    assert await emails.jobs.remove_orphans(dry_run=True) == [job.id]
    assert await emails.jobs.remove_orphans() == [job.id]
    assert await emails.jobs.get(job.id) is None
    assert len(await videos.jobs.remove_orphans(dry_run=True)) == 1


async def test_events_are_published_and_trimmed(emails: Queue) -> None:
    await emails.events.publish("shipped", order="7")
    async with emails.events(since="0", names=["shipped"]) as events:
        async with asyncio.timeout(20):
            async for event in events:
                assert event.fields["order"] == "7"
                break
    for n in range(500):
        await emails.events.publish("shipped", n=str(n))
    assert await emails.events.trim(0) > 0


async def test_obliterate_leaves_nothing_of_a_type(
    emails: Queue, make_queue: MakeQueue, client: TypeScriptClient
) -> None:
    store = client.store
    await emails.add_many([("email", n) for n in range(3)])
    done, dead = client.take(), client.take()
    assert done is not None
    assert dead is not None
    client.complete(done)
    client.fail(dead | {"attempts": 9})
    await emails.add("email", {}, delay="1h")
    await emails.add("email", {}, after=[(await emails.jobs.list("waiting"))[0].id])
    await emails.schedules.upsert("digest", cron="0 7 * * *")
    assert client.take() is not None
    store.sadd("bridge:jobs:active", *(key.rpartition(":")[2] for key in store.keys("bridge:jobs:lock:*")))
    with pytest.raises(QueueBusy):
        await emails.jobs.obliterate()
    assert not await emails.is_paused(), "nothing has changed"
    assert await emails.jobs.obliterate(force=True) >= 5
    await emails.close()
    left = {key for key in store.scan_iter("bridge:*") if "ox:call:" not in key}
    assert left <= {"bridge:ox:turns", "bridge:metrics:jobs:failed"}


# -- cancelling


async def test_a_job_that_waits_is_cancelled_at_once(emails: Queue) -> None:
    now = await emails.add("email", {})
    later = await emails.add("email", {}, delay="1h")
    after = await emails.add("email", {}, after=[now.id])
    for job in (now, later, after):
        assert await emails.jobs.cancel(job.id, "withdrawn") is Cancellation.CANCELLED
        seen = await emails.jobs.get(job.id)
        assert seen is not None
        assert (seen.state, seen.failed_reason) == (State.CANCELLED, "withdrawn")
        with pytest.raises(JobFailed, match="withdrawn"):
            await job.result(timeout=20)
        with pytest.raises(WrongState):
            await emails.jobs.cancel(job.id)
    counted = await emails.counts()
    assert (counted["waiting"], counted["delayed"], counted["waiting-children"]) == (0, 0, 0)
    assert counted["failed"] == 3
    with pytest.raises(JobNotFound):
        await emails.jobs.cancel("no-such-job")


async def test_a_job_of_another_type_is_no_job_of_the_queue(emails: Queue, videos: Queue) -> None:
    (video,) = await videos.jobs.list("waiting")
    with pytest.raises(JobNotFound):
        await emails.jobs.cancel(video.id)
    assert await waiting(videos) == 1


async def test_a_running_handler_is_asked_to_end(emails: Queue, store: Any) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def handle() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    emails.fallback(handle)
    job = await emails.add("email", {})
    async with Worker(emails, name="w1").running():
        async with asyncio.timeout(20):
            await begun.wait()
        assert await emails.jobs.cancel(job.id, "withdrawn") is Cancellation.REQUESTED
        async with asyncio.timeout(20):
            await ended.wait()
        with pytest.raises(JobFailed, match="withdrawn"):
            await job.result(timeout=20)
    assert store.get(f"bridge:jobs:status:{job.id}") == "failed"
    assert store.scard("bridge:jobs:active") == 0
    assert int(store.get("bridge:ratelimit:concurrent:email")) == 0


async def test_a_running_job_ends_by_force_and_its_result_is_refused(emails: Queue, store: Any) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handle() -> str:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await go_on.wait()
        return "all the same"

    emails.fallback(handle)
    job = await emails.add("email", {})
    async with Worker(emails, name="w1").running():
        async with asyncio.timeout(20):
            await begun.wait()
        assert await emails.jobs.cancel(job.id, "now", force=True) is Cancellation.CANCELLED
        assert store.get(f"bridge:jobs:status:{job.id}") == "failed"
        assert store.get(f"bridge:jobs:lock:{job.id}") is None
        go_on.set()
        await eventually(lambda: not store.hlen("bridge:ox:held"), "the worker has released the job")
    seen = await emails.jobs.get(job.id)
    assert seen is not None
    assert (seen.state, seen.return_value) == (State.CANCELLED, None)
    assert int(store.get("bridge:ratelimit:concurrent:email")) == 0


async def test_a_worker_of_another_client_cannot_be_asked(emails: Queue, client: TypeScriptClient) -> None:
    job = await emails.add("email", {})
    assert client.take() is not None
    with pytest.raises(CannotCancel):
        await emails.jobs.cancel(job.id)
    assert client.store.get(f"bridge:jobs:lock:{job.id}") == "node-1"
    assert await emails.jobs.cancel(job.id, force=True) is Cancellation.CANCELLED
    assert client.store.exists(f"bridge:jobs:lock:{job.id}") == 0


async def test_a_schedule_is_no_job_to_cancel(emails: Queue) -> None:
    made = await emails.schedules.upsert("digest", cron="0 7 * * *")
    with pytest.raises(SchedulerOwned):
        await emails.jobs.cancel(made.id)


async def test_all_jobs_that_fit_are_cancelled(emails: Queue, videos: Queue) -> None:
    await emails.add_many([("email", n) for n in range(MANY)], tags={"tenant": "acme"})
    await emails.add("email", {}, tags={"tenant": "acme"}, delay="1h")
    kept = await emails.add("email", {}, tags={"tenant": "other"})
    would = await emails.jobs.cancel_all(tags={"tenant": "acme"}, dry_run=True)
    assert (would.matched, would.cancelled) == (MANY + 1, 0)
    some = await emails.jobs.cancel_all(tags={"tenant": "acme"}, limit=3)
    assert (some.matched, some.cancelled) == (3, 3)
    rest = await emails.jobs.cancel_all(tags={"tenant": "acme"}, reason="gone")
    assert rest.cancelled == MANY - 2
    assert [job.id for job in await emails.jobs.list("waiting")] == [kept.id]
    assert await waiting(videos) == 1
