"""A drained queue has run its jobs as a worker does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oxcart import (
    PermanentError,
    Queue,
    RunningJob,
    TemporaryError,
    sync,
)
from oxcart.model.errors import (
    ValidationError,
    WrongState,
)
from oxcart.testing import (
    DrainTimeout,
    MemoryServer,
    drain,
    reset,
)
from tests.conftest import MakeQueue


class TestDrain:
    async def test_runs_a_real_worker_until_nothing_is_left(self, queue: Queue) -> None:
        @queue.job(attempts=2, backoff="1ms")
        async def flaky(job: RunningJob) -> int:
            if job.attempt == 1:
                raise TemporaryError("once")
            return job.attempt

        @queue.job
        async def spawns() -> None:
            await flaky.using(priority=3).enqueue()

        @queue.job
        async def broken() -> None:
            raise PermanentError("never")

        await spawns.enqueue()
        await broken.enqueue()
        await flaky.using(delay="10ms").enqueue()
        report = await drain(queue)
        assert report.counts == {"completed": 3, "failed": 1, "retried": 2}
        assert {one.value for one in report.of("completed", name="flaky")} == {2}
        assert report.failed[0].category == "permanent"
        assert report.retried[0].delay_ms == 1
        assert await queue.counts() == dict.fromkeys(await queue.counts(), 0) | {"completed": 3, "failed": 1}

    async def test_skips_delays_and_backoffs(self, queue: Queue) -> None:
        @queue.job(attempts=3, backoff="1h")
        async def flaky(job: RunningJob) -> int:
            if job.attempt < 3:
                raise TemporaryError("not yet")
            return 1

        await flaky.using(delay="1d").enqueue()
        report = await drain(queue, skip_delays=True)
        assert report.counts == {"retried": 2, "completed": 1}
        assert report.attempts[0].delay_ms == 3_600_000

    async def test_leaves_and_reports_jobs_without_a_handler(self, queue: Queue) -> None:
        queue.job(name="known")(lambda: None)
        await queue.add("known")
        await queue.add("unknown")
        report = await drain(queue, skip_delays=True)
        assert report.counts == {"completed": 1, "unhandled": 1}
        assert (await queue.counts())["delayed"] == 1

    async def test_leaves_and_reports_jobs_that_sleep_or_wait_for_a_signal(self, queue: Queue) -> None:
        @queue.job
        async def sleeps(job: RunningJob) -> None:
            await job.sleep("3d")

        @queue.job
        async def naps(job: RunningJob) -> str:
            await job.sleep("10ms")
            return "awake"

        @queue.job
        async def waits(job: RunningJob) -> Any:
            return await job.wait_signal("approved", "7d")

        jobs = [await sleeps.enqueue(), await waits.enqueue()]
        await naps.enqueue()
        report = await drain(queue)
        assert {job.id for job in report.suspended} == {job.id for job in jobs}
        assert [one.value for one in report.completed] == ["awake"]
        assert report.counts["suspended"] == 2
        await jobs[1].signal("approved", "yes")
        report = await drain(queue)
        assert [one.value for one in report.completed] == ["yes"]
        assert [job.id for job in report.suspended] == [jobs[0].id]

    async def test_says_what_was_left(self, queue: Queue) -> None:
        queue.fallback(lambda: None)
        await queue.add("later", delay="1h", job_id="mine")
        with pytest.raises(
            DrainTimeout, match=r"not empty within 0\.05 s: .*'delayed': 1.*, the first mine \(later\);"
        ):
            await drain(queue, within="50ms")

    async def test_several_queues(self, make_queue: MakeQueue) -> None:
        one, two = make_queue("one"), make_queue("two")

        @one.job
        async def first() -> None:
            await second.enqueue()

        @two.job
        async def second() -> None: ...

        await first.enqueue()
        report = await drain(one, two)
        assert sorted(attempt.queue for attempt in report.completed) == ["one", "two"]

    async def test_an_empty_queue(self, queue: Queue) -> None:
        assert (await drain(queue)).counts == {}

    async def test_refuses_a_paused_queue(self, queue: Queue) -> None:
        await queue.pause()
        with pytest.raises(WrongState, match="paused"):
            await drain(queue)

    async def test_passes_arguments_to_the_worker(self, queue: Queue) -> None:
        @queue.job(attempts=1)
        async def slow() -> None:
            await asyncio.Event().wait()

        await slow.enqueue()
        report = await drain(queue, timeout="10ms")
        assert report.failed[0].category == "timeout"

    async def test_runs_a_real_worker_in_memory(self) -> None:
        queue = Queue("q", broker=MemoryServer())

        @queue.job(attempts=2, backoff="1h")
        async def flaky(job: RunningJob) -> int:
            if job.attempt == 1:
                raise TemporaryError("once")
            return job.fencing

        await flaky.using(delay="1d").enqueue()
        report = await drain(queue, skip_delays=True)
        assert report.counts == {"retried": 1, "completed": 1}
        assert report.completed[0].value == 2
        await reset(queue)
        assert sum((await queue.counts()).values()) == 0

    def test_sync(self, url: str) -> None:
        with sync.Queue("q", url=url) as queue:
            queue.fallback(lambda: None)
            queue.add("n")
            assert drain(queue).counts == {"completed": 1}

    def test_needs_a_queue(self) -> None:
        with pytest.raises(ValidationError, match="at least one queue"):
            drain()
