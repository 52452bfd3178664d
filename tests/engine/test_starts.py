"""The number of starts: attempts that an older peer counted, and a bound on starts without an end."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import redis

from oxcart import Queue, RateLimited, RunningJob, Snooze, Worker
from oxcart.broker.port import Ask, Outcome, OutcomeKind
from oxcart.engine import verdict
from tests.conformance.conftest import Venue
from tests.servers import ValkeyServer
from tests.signals import eventually


class TestLegacyAttempts:
    """`attemptsMade`, the field in which BullMQ counted before version 5."""

    @pytest.mark.parametrize(
        ("legacy", "ended", "runs"), [(2, None, 1), (2, 1, 1), (1, 2, 1), (9, 0, 1), (0, 0, 3)]
    )
    async def test_attempts_used_are_the_larger_of_both_counts(
        self, queue: Queue, store: redis.Redis, legacy: int, ended: int | None, runs: int
    ) -> None:
        seen: list[int] = []

        @queue.fallback
        async def work(job: RunningJob) -> None:
            seen.append(job.attempt)
            raise RuntimeError("no")

        await queue.add("job", job_id="old", attempts=3, backoff=0.001)
        store.hset("bull:q:old", "attemptsMade", legacy)
        if ended is not None:
            store.hset("bull:q:old", "atm", ended)
        async with Worker(queue).running():
            await eventually(lambda: store.zscore("bull:q:failed", "old"), "it fails for good")
        assert len(seen) == runs
        job = await queue.jobs.get("old")
        assert job is not None
        assert job.attempts_made == max(legacy, ended or 0) + runs
        # One number in one place, so that a Node peer reads the same.
        assert store.hget("bull:q:old", "attemptsMade") is None
        assert await queue.dead_letters.count() == 1

    async def test_a_cancelled_run_counts_on_from_the_older_count(
        self, queue: Queue, store: redis.Redis
    ) -> None:
        await queue.add("job", job_id="old")
        store.hset("bull:q:old", "attemptsMade", 4)
        await queue._core.broker.claim(Ask(1))
        await queue.jobs.cancel("old", force=True)
        assert store.hget("bull:q:old", "atm") == "5"


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> int:
    """A bound that a test can reach."""
    monkeypatch.setattr(verdict, "MOST_UNENDED", 5)
    return 5


async def claim(queue: Queue) -> Any:
    (job,) = (await queue._core.broker.claim(Ask(1, lock_ms=60_000))).jobs
    return job


class TestBound:
    @pytest.mark.parametrize("protocol", ["bullmq", "bridge"])
    async def test_a_job_that_is_returned_too_often_fails(
        self, valkey: ValkeyServer, store: redis.Redis, bound: int, protocol: Any
    ) -> None:
        async with Venue(protocol, valkey.url, [valkey]).queue() as queue:
            runs: list[str] = []

            @queue.fallback
            async def work(job: RunningJob) -> None:
                runs.append(job.id)

            added = await queue.add("email", attempts=3)
            for _ in range(bound):
                job = await claim(queue)
                given_back = Outcome(
                    OutcomeKind.GIVE_BACK, job.id, job.token, job.starts, queue._core.broker.clock()
                )
                assert (await queue._core.broker.finish([given_back]))[0] == [1]
            async with Worker(queue).running():
                await eventually(lambda: _ended(queue, added.id), "it ends")
            failed = await queue.jobs.get(added.id)
            assert failed is not None
            assert (
                failed.failed_reason
                == "job started 5 times without ending: its workers were lost or gave it back"
            )
            assert failed.category == "system"
            assert not runs
            await queue.jobs.retry(added.id, reset=True)
            async with Worker(queue).running():
                await eventually(lambda: runs == [added.id], "an operator may let it run again")

    @pytest.mark.parametrize("protocol", ["bullmq", "bridge"])
    @pytest.mark.parametrize("asks", [Snooze(0.001), RateLimited(0.001)])
    async def test_starts_that_the_handler_ended_do_not_count(
        self, valkey: ValkeyServer, store: redis.Redis, bound: int, protocol: Any, asks: Any
    ) -> None:
        async with Venue(protocol, valkey.url, [valkey]).queue() as queue:

            @queue.fallback
            async def work(job: RunningJob) -> Any:
                return asks if job.fencing <= 3 * bound else "done"

            added = await queue.add("email")
            async with Worker(queue).running():
                assert await added.result(30) == "done"

    async def test_retries_do_not_count(self, queue: Queue, bound: int) -> None:
        @queue.fallback
        async def work(job: RunningJob) -> str:
            if job.fencing <= 3 * bound:
                raise RuntimeError("again")
            return "done"

        added = await queue.add("job", attempts=100, backoff=0.001)
        async with Worker(queue).running():
            assert await added.result(30) == "done"

    async def test_none_lifts_the_bound(self, queue: Queue, store: redis.Redis, bound: int) -> None:
        @queue.fallback
        async def work(job: RunningJob) -> int:
            return job.fencing

        added = await queue.add("job")
        store.hset(f"bull:q:{added.id}", "ats", 500)
        async with Worker(queue, max_started=None).running():
            assert await added.result(30) == 501

    def test_the_bound_is_on_by_default(self) -> None:
        assert verdict.MOST_UNENDED == 1000


async def _ended(queue: Queue, job_id: str) -> bool:
    return await queue.jobs.state(job_id) in ("failed", "completed")


@pytest.mark.parametrize("protocol", ["bullmq", "bridge"])
async def test_a_fence_grows_though_the_id_is_removed_and_added_again(
    valkey: ValkeyServer, store: redis.Redis, protocol: Any
) -> None:
    async with Venue(protocol, valkey.url, [valkey]).queue() as queue:
        seen: list[tuple[int, int]] = []

        @queue.fallback
        async def work(job: RunningJob) -> None:
            seen.append((job.fencing, job.fence))
            if job.attempt == 1:
                raise RuntimeError("again")

        job_id = str(uuid.uuid4())
        for generation in (1, 2, 3):
            await queue.add("email", job_id=job_id, attempts=2, backoff=0.001)
            async with Worker(queue).running():
                await eventually(lambda: _ended(queue, job_id), f"generation {generation} ends")
            await queue.jobs.remove(job_id)
    assert [fencing for fencing, _ in seen] == [1, 2] * 3
    fences = [fence for _, fence in seen]
    assert fences == sorted(set(fences))
    assert fences[-1] < 2**63
