"""How long a queue keeps ended jobs and events, unless a job or a worker say otherwise."""

from __future__ import annotations

import logging
from importlib.resources import files
from typing import Any

import pytest
import redis

from oxcart import PermanentError, Queue, Worker
from oxcart.broker.memory import MemoryServer
from oxcart.compat import bullmq
from oxcart.engine.keeping import KeepingNote
from oxcart.errors import JobFailed, NotSupported, ValidationError
from oxcart.model.retention import DEFAULT_AGES
from tests.signals import eventually

META = "bull:mail:meta"
DAY = 86_400_000


async def run(queue: Queue, *, fail: bool = False, **options: Any) -> str:
    """Runs a job to its end; returns its id."""
    job = await queue.add("fail" if fail else "fine", **options)
    try:
        await job.result(20)
    except JobFailed:
        assert fail
    return job.id


def make(url: str, **options: Any) -> Queue:
    queue = Queue("mail", url=url, **options)

    @queue.fallback
    async def handle(job: Any) -> None:
        if job.name == "fail":
            raise PermanentError("told to")

    return queue


def age(store: redis.Redis, state: str, job_id: str, days: float) -> None:
    score = store.zscore(f"bull:mail:{state}", job_id)
    assert score is not None
    store.zadd(f"bull:mail:{state}", {job_id: score - days * DAY})


def test_scripts_and_model_agree() -> None:
    base = (files("oxcart.broker.bullmq") / "lua" / "parts" / "base.lua").read_text()
    assert 'local RETENTION = "{}:{}"'.format(*DEFAULT_AGES) in base


async def test_a_new_queue_keeps_ended_jobs_for_a_time(url: str, store: redis.Redis) -> None:
    async with make(url) as queue, Worker(queue).running():
        done, failed = await run(queue), await run(queue, fail=True)
        age(store, "completed", done, 0.9)
        age(store, "failed", failed, 29)
        await run(queue)
        await run(queue, fail=True)
        assert await queue.jobs.get(done) is not None
        assert await queue.jobs.get(failed) is not None
        age(store, "completed", done, 0.2)
        await run(queue, fail=True)
        assert await queue.jobs.get(done) is not None, "a failed job ages failed ones"
        age(store, "failed", failed, 2)
        await run(queue)
        await run(queue, fail=True)
        assert await queue.jobs.get(done) is None
        assert await queue.jobs.get(failed) is None
        assert await queue._core.broker.kept_seconds() == DEFAULT_AGES
    assert store.hget(META, "opts.maxLenEvents") == "10000"


async def test_many_old_jobs_are_removed_in_small_portions(url: str, store: redis.Redis) -> None:
    async with make(url) as queue, Worker(queue, concurrency=50).running():
        jobs = await queue.add_many([("fine", None)] * 120)
        for job in jobs:
            await job.result(30)
        for job in jobs:
            age(store, "completed", job.id, 2)
        counts = []
        for _ in range(4):
            await run(queue)
            counts.append(store.zcard("bull:mail:completed"))
    assert counts == [71, 22, 3, 4]


@pytest.mark.parametrize("how", ["job", "queue", "worker"])
async def test_who_wants_all_keeps_all(url: str, store: redis.Redis, how: str) -> None:
    keep: dict[str, Any] = {"remove_on_complete": False}
    queue = make(url, **(keep if how == "queue" else {}))
    async with queue, Worker(queue, **(keep if how == "worker" else {})).running():
        done = await run(queue)
        age(store, "completed", done, 400)
        await run(queue, **(keep if how == "job" else {}))
        assert await queue.jobs.get(done) is not None


async def test_a_queue_of_before_or_of_a_peer_keeps_all(url: str, store: redis.Redis) -> None:
    store.hset(META, mapping={"opts.maxLenEvents": "10000", "version": "bullmq:5.62.0"})
    async with make(url) as queue, Worker(queue).running():
        done = await run(queue)
        age(store, "completed", done, 400)
        await run(queue)
        assert await queue.jobs.get(done) is not None
        assert await queue._core.broker.kept_seconds() == (None, None)


async def test_the_drop_in_keeps_all(url: str, store: redis.Redis) -> None:
    queue = bullmq.Queue("mail", {"connection": url})

    async def handle(job: Any, token: str) -> None:
        return None

    worker = bullmq.Worker("mail", handle, {"connection": url})
    try:
        done = await queue.add("fine", {})
        await eventually(lambda: store.zcard("bull:mail:completed") == 1, "it completed")
        age(store, "completed", str(done.id), 400)
        await queue.add("fine", {})
        await eventually(lambda: store.zcard("bull:mail:completed") == 2, "both are there")
    finally:
        await worker.close()
        await queue.close()


async def test_a_worker_says_how_long_jobs_stay(
    url: str, store: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with make(url) as queue:
        note = KeepingNote(queue._core.broker)
        assert await note.tick() is not None  # there is no queue yet
        await queue.add("fine")
        with caplog.at_level(logging.INFO, "oxcart.worker"):
            assert await note.tick() is None
    assert "queue mail keeps completed jobs for 1 d and failed jobs for 30 d" in caplog.text


class TestKeepEvents:
    async def test_sets_the_length_once(self, url: str, store: redis.Redis) -> None:
        async with make(url, keep_events=500) as queue:
            await queue.add("fine")
            assert store.hgetall(META) == {"opts.maxLenEvents": "500", "ox:retention": "86400:2592000"}
            store.hset(META, "opts.maxLenEvents", "700")
            await queue.add("fine")
            assert store.hget(META, "opts.maxLenEvents") == "700", "a peer's later choice stays"

    async def test_a_worker_sets_it_too(self, url: str, store: redis.Redis) -> None:
        async with make(url, keep_events=500) as queue, Worker(queue).running():
            await eventually(lambda: store.hget(META, "opts.maxLenEvents") == "500", "it is set")

    @pytest.mark.parametrize("number", [99, 10_000_001, 1e4, True])
    def test_is_checked(self, number: Any) -> None:
        with pytest.raises(ValidationError, match="keep_events must be an integer from 100 to 10000000"):
            Queue("mail", keep_events=number)

    def test_is_refused_where_it_has_no_effect(self) -> None:
        with pytest.raises(NotSupported, match="another number of kept events"):
            Queue("mail", protocol="bridge", keep_events=500)
        with pytest.raises(NotSupported, match="another number of kept events"):
            Queue("mail", broker=MemoryServer(), keep_events=500)
