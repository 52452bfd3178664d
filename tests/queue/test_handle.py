"""A handle of a job: its result, before and after its end, and operations on the job."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from unittest.mock import AsyncMock

import pytest
import redis

from oxcart import JobHandle, PermanentError, Queue, TemporaryError, Worker
from oxcart.broker.port import Ask
from oxcart.model.errors import (
    JobFailed,
    JobLocked,
    JobNotFound,
    PayloadError,
    ResultTimeout,
    ValidationError,
    WrongState,
)
from oxcart.model.event import Event
from oxcart.testing import drain
from tests.signals import eventually


async def wait_and_run(queue: Queue, job: JobHandle[Any]) -> Any:
    """Wait for the result first, then let a worker run the job."""
    waiting = asyncio.create_task(job.result(timeout=20))
    await asyncio.sleep(0)
    await drain(queue)
    return await waiting


class TestResult:
    @pytest.mark.parametrize("removed", [False, True])
    async def test_before_the_job_has_run(self, queue: Queue, removed: bool) -> None:
        queue.fallback(lambda: {"x": [1, b"\x00"]})
        job = await queue.add("n", remove_on_complete=removed)
        assert await wait_and_run(queue, job) == {"x": [1, b"\x00"]}

    @pytest.mark.parametrize("removed", [False, True])
    async def test_after_the_job_has_run(self, queue: Queue, removed: bool) -> None:
        queue.fallback(lambda: "done")
        job = await queue.add("n", remove_on_complete=removed)
        await drain(queue)
        assert await job.result(timeout=20) == "done"
        assert await job.state() == ("unknown" if removed else "completed")

    @pytest.mark.parametrize("value", [None, 0, "", [], False])
    async def test_an_empty_result_is_a_result(self, queue: Queue, value: Any) -> None:
        queue.fallback(lambda: value)
        job = await queue.add("n")
        await drain(queue)
        assert await job.result(timeout=20) == value

    async def test_the_end_before_a_retry_is_not_the_result(self, queue: Queue, store: redis.Redis) -> None:
        """A reader of the stream may be behind: it reads the end of the first run after the retry."""
        results = iter(["first", "second"])
        queue.fallback(lambda: next(results))
        job = await queue.add("n")
        await drain(queue)
        await job.retry()
        waiting = asyncio.create_task(job.result(timeout=20))
        other = asyncio.create_task((await queue.add("later", delay="1h", job_id="other")).result(timeout=20))
        await eventually(lambda: len(queue._core.results._waiting) == 2, "both wait")
        for job_id, value in ((job.id, '"first"'), ("other", '"read"')):
            store.xadd("bull:q:events", {"event": "completed", "jobId": job_id, "returnvalue": value})
        assert await other == "read"
        await queue.jobs.remove("other")
        await drain(queue)
        assert await waiting == "second"

    async def test_a_failure_before_a_retry_that_is_read_after_its_end(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The reader is so far behind that the job has completed when it reads the failure."""
        results = queue._core.results
        monkeypatch.setattr(results, "_listen", AsyncMock())
        outcomes = iter([PermanentError("first"), "second"])

        @queue.fallback
        async def work() -> Any:
            if isinstance(outcome := next(outcomes), Exception):
                raise outcome
            return outcome

        job = await queue.add("n")
        await drain(queue)
        await job.retry()
        waiting = asyncio.create_task(job.result(timeout=20))
        await eventually(lambda: job.id in results._waiting, "it waits")
        await job.state()  # its look has been answered too: calls of one connection are in order
        await drain(queue)
        old = Event(id="1-0", name="failed", queue="q", timestamp=1, job_id=job.id, failed_reason="first")
        [future] = results._waiting[job.id]
        future.set_result(old)
        assert await waiting == "second"

    async def test_by_an_id_alone(self, queue: Queue) -> None:
        queue.fallback(lambda: 3)
        job = await queue.add("n")
        await drain(queue)
        assert await queue.jobs.handle(job.id).result(timeout=20) == 3

    async def test_after_retries(self, queue: Queue) -> None:
        @queue.job(attempts=3, backoff="1ms")
        async def flaky() -> int:
            if len(calls) < 2:
                calls.append(1)
                raise TemporaryError("not yet")
            return 7

        calls: list[int] = []
        assert await wait_and_run(queue, await flaky.enqueue()) == 7

    @pytest.mark.parametrize("before", [True, False])
    async def test_a_failure_with_its_category(self, queue: Queue, before: bool) -> None:
        @queue.job(attempts=3, backoff="1ms")
        async def broken(kind: str) -> None:
            raise PermanentError("never") if kind == "permanent" else TemporaryError("not now")

        for kind, attempts in (("permanent", 1), ("temporary", 3)):
            job = await broken.enqueue(kind)
            if not before:
                await drain(queue)
            with pytest.raises(JobFailed) as caught:
                await (wait_and_run(queue, job) if before else job.result(timeout=20))
            error = caught.value
            assert (error.job_id, error.category) == (job.id, kind)
            assert error.reason == ("never" if kind == "permanent" else "not now")
            assert len(error.stacktrace) == attempts
            assert kind in str(error)

    async def test_a_failed_job_that_was_removed(self, queue: Queue) -> None:
        @queue.job(attempts=1, remove_on_fail=True)
        async def broken() -> None:
            raise ValueError("gone and failed")

        job = await broken.enqueue()
        await drain(queue)
        with pytest.raises(JobFailed, match="gone and failed"):
            await job.result(timeout=20)

    async def test_not_in_time(self, queue: Queue) -> None:
        job = await queue.add("n")
        began = time.monotonic()
        with pytest.raises(ResultTimeout, match=f"job {job.id} has not ended within 0.02 s"):
            await job.result(timeout="20ms")
        assert time.monotonic() - began < 30
        assert await job.state() == "waiting"
        with pytest.raises(TimeoutError):
            await job.result(timeout=0.001)

    async def test_a_bad_timeout(self, queue: Queue) -> None:
        with pytest.raises(ValidationError, match="timeout"):
            await queue.jobs.handle("x").result(timeout="soon")

    async def test_a_job_that_never_was(self, queue: Queue) -> None:
        with pytest.raises(JobNotFound):
            await queue.jobs.handle("none").result(timeout=20)

    async def test_a_job_that_was_removed_before_it_ran(self, queue: Queue) -> None:
        job = await queue.add("n")
        await job.remove()
        with pytest.raises(JobNotFound):
            await job.result(timeout=20)

    async def test_an_end_far_back_in_the_events(self, queue: Queue) -> None:
        queue.fallback(lambda: "old")
        job = await queue.add("n", remove_on_complete=True)
        await drain(queue)
        await queue.add_many([("n", number) for number in range(600)], delay=60)
        assert await job.result(timeout=20) == "old"

    async def test_result_of_a_peer_that_is_no_json_is_text(self, queue: Queue, store: redis.Redis) -> None:
        job = await queue.add("n")
        store.lrem("bull:q:wait", 1, job.id)
        store.hset(f"bull:q:{job.id}", mapping={"returnvalue": "undefined", "finishedOn": "5"})
        store.zadd("bull:q:completed", {job.id: 5})
        assert await job.result(timeout=20) == "undefined"

    async def test_several_waiters_of_one_job(self, queue: Queue) -> None:
        queue.fallback(lambda: 1)
        job = await queue.add("n")
        waiting = [asyncio.create_task(job.result(timeout=20)) for _ in range(5)]
        gives_up = asyncio.create_task(job.result(timeout="1ms"))
        await asyncio.gather(gives_up, return_exceptions=True)
        await drain(queue)
        assert await asyncio.gather(*waiting) == [1] * 5

    async def test_while_a_worker_runs(self, queue: Queue) -> None:
        queue.fallback(lambda job: job.data * 2)
        async with Worker(queue, concurrency=10).running():
            jobs = await queue.add_many([("n", number) for number in range(100)], remove_on_complete=True)
            results = await asyncio.gather(*(job.result(timeout=20) for job in jobs))
        assert results == [number * 2 for number in range(100)]


class TestSteering:
    async def test_get(self, queue: Queue) -> None:
        job = await queue.add("n", {"x": 1})
        assert (await job.get()).data == {"x": 1}
        await job.remove()
        with pytest.raises(JobNotFound, match=job.id):
            await job.get()

    async def test_log(self, queue: Queue) -> None:
        job = await queue.add("n")
        assert await job.logs() == []
        assert [await job.log("one"), await job.log("two", "drei ü")] == [1, 3]
        assert await job.logs() == ["one", "two", "drei ü"]

    async def test_the_log_keeps_a_thousand_lines(self, queue: Queue) -> None:
        job = await queue.add("n")
        assert await job.log(*map(str, range(1200))) == 1000
        assert (await job.logs())[0] == "200"

    async def test_progress(self, queue: Queue) -> None:
        job = await queue.add("n")
        for progress in (0, 42.5, 100, {"step": "three"}):
            await job.update_progress(progress)
            assert (await job.get()).progress == progress
        for bad in (-1, 101, float("nan"), "half", True, None):
            with pytest.raises(ValidationError, match="progress must be a number from 0 to 100 or an object"):
                await job.update_progress(bad)

    async def test_data(self, queue: Queue) -> None:
        job = await queue.add("n", 1)
        await job.update_data({"x": b"\x01"})
        assert (await job.get()).data == {"x": b"\x01"}
        with pytest.raises(PayloadError):
            await job.update_data(float("nan"))
        with pytest.raises(PayloadError, match="Job payload size"):
            await job.update_data("x" * 11_000_000)
        assert (await job.get()).data == {"x": b"\x01"}

    async def test_priority(self, queue: Queue) -> None:
        first, second = await queue.add("n", priority=5), await queue.add("n", priority=5)
        await second.change_priority(5, lifo=True)
        assert [job.id for job in await queue.jobs.list("prioritized", oldest=True)] == [second.id, first.id]
        await first.change_priority(0)
        assert await first.state() == "waiting"
        with pytest.raises(ValidationError, match="priority"):
            await first.change_priority(-1)

    async def test_delay_and_promote(self, queue: Queue) -> None:
        job = await queue.add("n", delay=60)
        await job.change_delay("2h")
        assert (await job.get()).delay == 7_200_000
        await job.promote()
        assert await job.state() == "waiting"
        for change in (job.promote(), job.change_delay(5)):
            with pytest.raises(WrongState):
                await change

    async def test_retry(self, queue: Queue) -> None:
        queue.fallback(lambda: 1)
        job = await queue.add("n")
        await drain(queue)
        await job.retry()
        assert await job.state() == "waiting"
        await drain(queue)
        assert (await job.get()).attempts_made == 2
        await job.retry(reset=True)
        assert (await job.get()).attempts_made == 0

    async def test_a_job_that_is_gone(self, queue: Queue) -> None:
        job = queue.jobs.handle("none")
        for change in (
            job.log("x"),
            job.update_progress(5),
            job.update_data(1),
            job.change_priority(3),
            job.change_delay(3),
            job.retry(),
            job.remove(),
        ):
            with pytest.raises(JobNotFound):
                await change

    async def test_leased_job_cannot_be_removed_or_retried(self, queue: Queue) -> None:
        job = await queue.add("n")
        await queue._core.broker.claim(Ask(1))
        with pytest.raises(JobLocked):
            await job.remove()
        with pytest.raises(WrongState):
            await job.retry()
        await eventually(lambda: _active(job), "still active")


async def _active(job: JobHandle[Any]) -> bool:
    return await job.state() == "active"
