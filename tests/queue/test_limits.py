"""Limits of a whole queue on a real server: what is written, and how workers obey it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from oxcart import Queue, RateLimited, Worker
from oxcart.broker.port import Ask
from oxcart.engine.handler import RunKind
from oxcart.limits import Rate
from oxcart.model.errors import OxcartError, ValidationError
from oxcart.sync import Queue as SyncQueue
from oxcart.testing import inline
from tests.conftest import MakeQueue
from tests.signals import eventually


async def test_queue_limits_are_set_read_and_removed(queue: Queue, store: redis.Redis) -> None:
    limits = queue.limits
    assert (await limits.concurrency(), await limits.rate(), await limits.wait_ms()) == (None, None, 0)
    await limits.set_concurrency(3)
    await limits.set_rate(10, per="1m")
    assert (await limits.concurrency(), await limits.rate()) == (3, Rate(10, 60_000))
    assert store.hgetall("bull:q:meta") == {"concurrency": "3", "max": "10", "duration": "60000"}
    await limits.remove_concurrency()
    await limits.remove_rate()
    assert store.hgetall("bull:q:meta") == {}


def test_without_await(url: str) -> None:
    queue = SyncQueue("q", url=url)
    queue.limits.set_concurrency(3)
    queue.limits.set_rate(10, per=60)
    assert (queue.limits.concurrency(), queue.limits.rate()) == (3, Rate(10, 60_000))
    queue.limits.hold("1h")
    assert 0 < queue.limits.wait_ms() <= 3_600_000
    queue.limits.release()
    queue.limits.remove_rate()
    queue.limits.remove_concurrency()
    assert (queue.limits.wait_ms(), queue.limits.rate(), queue.limits.concurrency()) == (0, None, None)
    queue.close()


@pytest.mark.parametrize("most", [0, -1, True, 1.5, "1"])
async def test_a_limit_is_a_number_of_jobs(queue: Queue, most: Any) -> None:
    with pytest.raises(ValidationError, match="most"):
        await queue.limits.set_concurrency(most)
    with pytest.raises(ValidationError, match="most"):
        await queue.limits.set_rate(most, per=1)


async def test_the_wait_is_that_of_the_rate_in_force(queue: Queue, store: redis.Redis) -> None:
    store.set("bull:q:limiter", 3, px=60_000)
    assert await queue.limits.wait_ms() == 0
    assert await queue.limits.wait_ms(4) == 0
    assert await queue.limits.wait_ms(3) > 0
    await queue.limits.set_rate(10, per=60)
    assert await queue.limits.wait_ms(3) == 0  # the queue's own rate takes precedence
    await queue.limits.hold(60)
    assert await queue.limits.wait_ms() > 0


async def test_no_more_run_at_once_than_the_queue_allows(queue: Queue) -> None:
    running, most, done = 0, 0, 0
    full = asyncio.Event()

    @queue.job
    async def work() -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        if running == 2:
            full.set()
        await full.wait()
        await asyncio.sleep(0.01)
        running -= 1
        done += 1

    await queue.limits.set_concurrency(2)
    await queue.add_many([("work", {})] * 12)
    async with Worker(queue, concurrency=5).running(), Worker(queue, concurrency=5).running():
        await eventually(lambda: done == 12, "all done")
    assert most == 2


async def test_a_claim_that_reaches_the_limit_reports_it(queue: Queue) -> None:
    # Otherwise its worker would wait for a marker that no finish sets.
    await queue.limits.set_concurrency(2)
    await queue.add_many([("work", {})] * 3)
    assert (await queue._core.broker.claim(Ask(count=1))).closed is False
    assert (await queue._core.broker.claim(Ask(count=5))).closed is True


async def test_no_more_start_in_a_window_than_the_rate_allows(queue: Queue, store: redis.Redis) -> None:
    seen: list[int] = []

    @queue.job
    async def work() -> None:
        seen.append(int(store.get("bull:q:limiter") or 0))

    await queue.limits.set_rate(2, per="200ms")
    await queue.add_many([("work", {})] * 6)
    async with Worker(queue, concurrency=5).running():
        await eventually(lambda: len(seen) == 6, "all done")
    assert max(seen) <= 2


class TestRateLimited:
    @pytest.mark.parametrize("way", ["raised", "returned"])
    async def test_the_job_goes_back_without_using_an_attempt(self, queue: Queue, way: str) -> None:
        attempts: list[tuple[int, int]] = []

        @queue.job(attempts=1)
        async def work(job: Any) -> Any:
            attempts.append((job.attempt, job.fencing))
            if len(attempts) > 1:
                return "done"
            limited = RateLimited("50ms", "too many requests")
            if way == "raised":
                raise limited
            return limited

        job = await work.enqueue()
        async with Worker(queue).running():
            assert await job.result(timeout=30) == "done"
        assert attempts == [(1, 1), (1, 2)]
        assert (await job.get()).attempts_made == 1

    @pytest.mark.slow
    async def test_no_worker_of_ours_starts_a_job_until_the_time_is_over(
        self, queue: Queue, store: redis.Redis
    ) -> None:
        ran: list[str] = []

        @queue.job
        async def work(job: Any, n: int) -> None:
            ran.append(job.id)
            if len(ran) == 1:
                raise RateLimited("1h")

        first, second = await queue.add_many([("work", {"n": 1}), ("work", {"n": 2})])
        async with Worker(queue).running():
            await eventually_limited(queue)
            assert store.lrange("bull:q:wait", 0, -1) == [second.id, first.id]  # to the front
            for ask in (Ask(count=5), Ask(count=5, limit_max=9, limit_duration=1)):
                claimed = await queue._core.broker.claim(ask)
                assert claimed.jobs == []
                assert claimed.limited_ms > 3_000_000
            await queue.limits.release()
            await eventually(lambda: len(ran) == 3, "both run", 30)
        assert ran == [first.id, first.id, second.id]

    @pytest.mark.parametrize("run", ["thread", "process"])
    async def test_from_a_thread_and_a_process(self, make_queue: MakeQueue, run: RunKind) -> None:
        queue = make_queue(f"limited-{run}")
        queue.fallback(limited_once, run=run)
        job = await queue.add("work", {}, attempts=1)
        async with Worker(queue).running():
            await eventually_limited(queue)
            assert await job.state() == "waiting"
            assert (await job.get()).attempts_made == 0

    async def test_a_rate_limit_of_a_lost_job_is_refused(self, queue: Queue, store: redis.Redis) -> None:
        @queue.job
        async def work(job: Any) -> None:
            store.set(f"bull:q:{job.id}:lock", "another")
            raise RateLimited("1h")

        job = await work.enqueue()
        async with Worker(queue, recover=False).running():
            await eventually_limited(queue)
        assert await job.state() == "active"

    def test_rate_limited_has_its_duration(self) -> None:
        assert RateLimited("1m").after_ms == 60_000
        assert str(RateLimited(2)) == "rate limited for 2000 ms"
        with pytest.raises(ValidationError, match="after"):
            RateLimited(0)


def limited_once(job: Any) -> None:
    raise RateLimited("1h")


async def eventually_limited(queue: Queue) -> None:
    async with asyncio.timeout(30):
        while not await queue.limits.wait_ms():
            await asyncio.sleep(0.01)


async def test_a_queue_at_its_rate_does_not_hold_up_another(make_queue: MakeQueue) -> None:
    slow, quick = make_queue("slow"), make_queue("quick")
    done: list[str] = []
    slow.fallback(lambda job: done.append("slow"))
    quick.fallback(lambda job: done.append("quick"))
    await slow.limits.set_rate(1, per="1h")
    await slow.add_many([("a", {})] * 3)
    async with Worker(slow, quick).running():
        await eventually(lambda: done == ["slow"], "the limit reached")
        await quick.add("b", {})
        await eventually(lambda: done == ["slow", "quick"], "the other queue served")


async def test_without_a_server_there_are_neither(queue: Queue) -> None:
    with inline(queue):
        with pytest.raises(OxcartError, match="no server"):
            await queue.schedules.count()
        with pytest.raises(OxcartError, match="no server"):
            await queue.limits.rate()


async def test_a_queue_at_its_limit_does_not_keep_others_waiting(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its marker wakes the worker: neither a poll nor the end of the limit would be in time."""
    monkeypatch.setattr("oxcart.engine.waiter.POLL", 600.0)
    monkeypatch.setattr("oxcart.engine.claims.LIMITED", 600_000)
    limited, free = make_queue("limited"), make_queue("free")
    started = asyncio.Event()

    @limited.job
    async def slow() -> None:
        started.set()
        await asyncio.sleep(0.005)

    @free.job
    async def quick() -> int:
        return 1

    for _ in range(5):
        await slow.enqueue()
    worker = Worker(limited, free, limiter=(3, 600), concurrency=1)
    async with asyncio.timeout(60), worker.running():
        await started.wait()
        await eventually(
            lambda: worker._stations[0].until_ms > 0, "a claim on the limited queue returned none"
        )
        assert await (await quick.enqueue()).result(timeout=20) == 1
