"""A paused worker, and how the queue counts it."""

from __future__ import annotations

import asyncio
from typing import Any

import redis

from oxcart import JobHandle, Queue, RunningJob, TemporaryError, Worker
from tests.conftest import MakeQueue
from tests.signals import eventually


class Held:
    """Jobs that run until the test releases them."""

    def __init__(self, queue: Queue) -> None:
        self.started: list[str] = []
        self.gate = asyncio.Event()
        queue.fallback(self.hold)

    async def hold(self, job: RunningJob) -> None:
        self.started.append(job.id)
        await self.gate.wait()


class TestPause:
    async def test_claims_no_more_jobs_and_lets_running_ones_end(self, queue: Queue) -> None:
        held = Held(queue)
        # One slot: with two, a claim that is pending at the pause could still return a job.
        async with Worker(queue).running() as worker:
            first = await queue.add("n")
            await eventually(lambda: held.started, "the job runs")
            pausing = asyncio.create_task(worker.pause())
            await asyncio.sleep(0)
            assert worker.is_paused
            second = await queue.add("n")
            assert not pausing.done()
            held.gate.set()
            await pausing
            assert await first.state() == "completed"
            assert await second.state() == "waiting"
            worker.resume()
            await second.result(timeout=10)
            assert held.started == [first.id, second.id]

    async def test_without_waiting(self, queue: Queue) -> None:
        held = Held(queue)
        async with Worker(queue).running() as worker:
            job = await queue.add("n")
            await eventually(lambda: held.started, "the job runs")
            await worker.pause(wait=False)
            assert await job.state() == "active"
            held.gate.set()
            await job.result(timeout=10)

    async def test_another_worker_takes_the_jobs(self, queue: Queue) -> None:
        queue.fallback(lambda: 1)
        async with Worker(queue).running() as idle:
            await idle.pause()
            async with Worker(queue).running() as other:
                for _ in range(5):  # the paused worker could have taken any of their markers
                    assert await (await queue.add("n")).result(timeout=10) == 1
                await eventually(lambda: other.processed == 5, "all by the other one")
                assert idle.processed == 0

    async def test_before_it_starts(self, make_queue: MakeQueue) -> None:
        queue, other = make_queue("q"), make_queue("other")
        for one in (queue, other):
            one.fallback(lambda: 1)
        worker = Worker(queue)
        await worker.pause()
        job = await queue.add("n")
        async with worker.running(), Worker(other).running():
            await (await other.add("n")).result(timeout=10)
            assert await job.state() == "waiting"
            worker.resume()
            await job.result(timeout=10)

    async def test_stop_ends_a_wait_for_running_jobs(self, queue: Queue) -> None:
        held = Held(queue)
        worker = Worker(queue, shutdown_timeout=0)
        async with worker.running():
            await queue.add("n")
            await eventually(lambda: held.started, "the job runs")
            pausing = asyncio.create_task(worker.pause())
            await asyncio.sleep(0)
            worker.stop()
            async with asyncio.timeout(10):
                await pausing


class TestCounting:
    async def test_ends_are_counted_where_asked_for(self, queue: Queue, store: redis.Redis) -> None:
        def work(good: bool) -> None:
            if not good:
                raise TemporaryError("no")

        queue.job(name="n")(work)
        async with Worker(queue, metrics=60, concurrency=5).running():
            jobs = await queue.add_many([("n", {"good": number % 3 > 0}) for number in range(9)], attempts=1)
            await eventually(lambda: _ended(store, len(jobs)), "all jobs have ended")
        assert (await queue.jobs.metrics()).count == 6
        assert (await queue.jobs.metrics("failed")).count == 3

    async def test_a_job_started_too_often_fails_without_being_run(self, queue: Queue) -> None:
        runs: list[int] = []

        def work() -> None:
            runs.append(1)
            raise TemporaryError("again", retry_after=0)

        queue.fallback(work)
        job = await queue.add("n", attempts=10)
        async with Worker(queue, max_started=2).running():
            await eventually(lambda: _is_failed(job), "the job has failed")
        found = await job.get()
        assert (len(runs), found.failed_reason) == (2, "job started more than allowable limit")


def _ended(store: redis.Redis, count: int) -> bool:
    return int(store.zcard("bull:q:completed")) + int(store.zcard("bull:q:failed")) == count


async def _is_failed(job: JobHandle[Any]) -> bool:
    return await job.state() == "failed"
