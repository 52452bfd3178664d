"""Retries and failures: what is retried, when, and what the next attempt knows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from oxcart import Queue, Worker, testing
from oxcart.broker.keyring import KeyRing
from oxcart.broker.port import Ask
from oxcart.engine.running import RunningJob
from oxcart.model.errors import JobError, PayloadError, ValidationError
from oxcart.model.failure import PermanentError, TemporaryError
from oxcart.model.state import State
from tests.conftest import MakeQueue
from tests.engine import process_handlers
from tests.formal.test_history import check
from tests.formal.test_timeouts import ended
from tests.signals import eventually


async def delays(queue: Queue, rand: float = 0.5, **options: Any) -> list[int]:
    """Returns the waits between the attempts of a failing job; each wait is cut short once it is known."""

    async def fail() -> None:
        raise TemporaryError("no")

    queue.job(name="n")(fail)
    handle = await queue.add("n", **options)
    found: list[int] = []

    async def settled() -> bool:
        job = await handle.get()
        return job.finished_on is not None or (
            job.state is State.RETRYING and job.attempts_made == len(found) + 1
        )

    async with Worker(
        queue, rand=lambda: rand, strategies={"twice": lambda n, base, cap: 2 * n * base}
    ).running():
        while True:
            await eventually(settled, "it waits, or has ended")
            job = await handle.get()
            if job.finished_on is not None:
                return found
            found.append(job.delay)
            await handle.promote()


class TestBackoff:
    @pytest.mark.parametrize(
        ("backoff", "expected"),
        [
            ({"type": "constant", "delay": "1m"}, [60_000, 60_000, 60_000, 60_000]),
            ({"type": "linear", "delay": "1m", "cap": "150s"}, [60_000, 120_000, 150_000, 150_000]),
            ({"type": "exponential", "delay": "1m"}, [60_000, 120_000, 240_000, 480_000]),
            (
                {"type": "exponential", "delay": "1m", "multiplier": 3, "cap": "5m"},
                [60_000, 180_000, 300_000, 300_000],
            ),
            ({"type": "custom", "name": "twice", "delay": "1m"}, [120_000, 240_000, 360_000, 480_000]),
        ],
        ids=["constant", "linear", "exponential", "multiplied", "custom"],
    )
    async def test_the_waits_are_the_formulas(self, queue: Queue, backoff: Any, expected: list[int]) -> None:
        assert await delays(queue, attempts=5, backoff=backoff) == expected

    async def test_the_defaults_are_three_attempts_from_a_second(self, queue: Queue) -> None:
        assert await delays(queue) == [1000, 2000]

    async def test_the_errors_own_time_wins(self, queue: Queue) -> None:
        async def fail() -> None:
            raise TemporaryError("later", retry_after="90s")

        queue.job(name="n")(fail)
        handle = await queue.add("n", attempts=2, backoff="5s")

        async def waits() -> bool:
            return (await handle.get()).state is State.RETRYING

        async with Worker(queue).running():
            await eventually(waits, "it waits")
            assert (await handle.get()).delay == 90_000

    @pytest.mark.parametrize(
        ("rand", "expected"), [(0.0, 90_000), (0.25, 95_000), (0.5, 100_000), (0.75, 105_000), (1.0, 110_000)]
    )
    async def test_jitter_spreads_by_a_tenth(self, queue: Queue, rand: float, expected: int) -> None:
        backoff = {"type": "constant", "delay": "100s", "jitter": 0.1}
        (wait,) = await delays(queue, rand, attempts=2, backoff=backoff)
        assert expected - 1 <= wait <= expected  # rounded down

    @pytest.mark.parametrize("rand", [0.0, 1.0])
    async def test_without_jitter_nothing_is_random(self, queue: Queue, rand: float) -> None:
        assert await delays(queue, rand, attempts=3, backoff={"type": "linear", "delay": "1m"}) == [
            *(60_000, 120_000),
        ]

    async def test_jitter_is_random_by_default(self, queue: Queue) -> None:
        """Two workers that fail at the same time do not retry at the same time."""
        assert len({Worker(queue)._verdict._rand() for _ in range(20)}) > 10


class TestCounting:
    async def test_a_returned_job_uses_no_attempt(self, queue: Queue) -> None:
        seen: list[tuple[int, int]] = []
        begun = asyncio.Event()

        async def work(job: RunningJob) -> None:
            seen.append((job.attempt, job.fencing))
            if len(seen) == 1:
                begun.set()
                await asyncio.Event().wait()

        queue.job(name="n")(work)
        handle = await queue.add("n", attempts=1)
        async with Worker(queue, shutdown_timeout="10ms").running(), asyncio.timeout(20):
            await begun.wait()
        async with Worker(queue).running():
            await handle.result(20)
        assert seen == [(1, 1), (1, 2)]
        assert (await handle.get()).attempts_made == 1

    async def test_lost_workers_use_up_the_attempts(self, queue: Queue, store: redis.Redis) -> None:
        ran: list[int] = []
        queue.fallback(lambda: ran.append(1))
        handle = await queue.add("n", attempts=2)

        async def is_ready_again() -> bool:
            await queue._core.broker.recover(max_stalled=9, interval_ms=1)
            return await handle.state() == "waiting"

        for _ in range(2):
            lost = queue._core.open_broker()
            assert len((await lost.claim(Ask(1))).jobs) == 1
            await lost.close()
            store.delete(f"bull:q:{handle.id}:lock")  # as its time would have
            await eventually(is_ready_again, "the job was recovered", 20)
        async with Worker(queue, max_stalled=9).running():
            await eventually(lambda: ended(queue, handle.id), "it has ended", 20)
        job = await handle.get()
        assert (ran, job.state, job.category) == ([], State.DEAD_LETTER, "system")
        assert job.failed_reason == "attempts exhausted: 2 of 2, the last by a lost worker"


class TestCheckpoint:
    async def test_survives_to_the_next_attempt(self, queue: Queue, store: redis.Redis) -> None:
        seen: list[Any] = []

        @queue.job(backoff="1ms", attempts=3)
        async def work(job: RunningJob) -> Any:
            seen.append(job.checkpointed)
            await job.checkpoint({"done": len(seen), "raw": b"\x00"})
            assert job.checkpointed["done"] == len(seen)
            if len(seen) < 3:
                raise TemporaryError("cut off")
            return job.checkpointed["done"]

        handle = await work.enqueue()
        async with Worker(queue).running():
            assert await handle.result(20) == 3
        assert seen == [None, {"done": 1, "raw": b"\x00"}, {"done": 2, "raw": b"\x00"}]
        job = await handle.get()
        assert job.checkpointed == {"done": 3, "raw": b"\x00"}
        assert (job.attempt_id, job.previous_attempt_id) == (f"{job.id}/3", f"{job.id}/2")

    async def test_is_sealed_where_payloads_are(self, make_queue: MakeQueue, store: redis.Redis) -> None:
        queue = make_queue(key_ring=KeyRing({"k1": b"k" * 32}))
        seen: list[Any] = []

        async def work(job: RunningJob) -> None:
            seen.append(job.checkpointed)
            await job.checkpoint("secret")
            if len(seen) == 1:
                raise TemporaryError("again")

        queue.job(name="n")(work)
        handle = await queue.add("n", backoff="1ms")
        async with Worker(queue).running():
            await handle.result(20)
        assert seen == [None, "secret"]
        assert "secret" not in str(store.hget(f"bull:q:{handle.id}", "ox:checkpoint"))
        assert (await handle.get()).checkpointed == "secret"

    async def test_survives_a_lost_worker(self, queue: Queue, store: redis.Redis) -> None:
        lost = queue._core.open_broker()
        handle = await queue.add("n")
        (claim,) = (await lost.claim(Ask(1))).jobs
        await RunningJob(lost, claim, "lost", None).checkpoint("half")
        await lost.close()
        store.delete(f"bull:q:{handle.id}:lock")  # as its time would have

        async def work(job: RunningJob) -> Any:
            return job.checkpointed

        queue.job(name="n")(work)
        async with Worker(queue, stalled_interval="50ms").running():
            assert await handle.result(20) == "half"

    async def test_only_the_lease_holder_saves(self, queue: Queue, store: redis.Redis) -> None:
        handle = await queue.add("n")
        (claim,) = (await queue._core.broker.claim(Ask(1))).jobs
        store.set(f"bull:q:{handle.id}:lock", "other")
        with pytest.raises(JobError):
            await RunningJob(queue._core.broker, claim, "w", None).checkpoint(1)
        assert not store.hexists(f"bull:q:{handle.id}", "ox:checkpoint")

    async def test_checkpoint_refuses_values_that_are_no_json(self, queue: Queue, store: redis.Redis) -> None:
        handle = await queue.add("n")
        (claim,) = (await queue._core.broker.claim(Ask(1))).jobs
        with pytest.raises(PayloadError, match="checkpoint"):
            await RunningJob(queue._core.broker, claim, "w", None).checkpoint(object())
        assert not store.hexists(f"bull:q:{handle.id}", "ox:checkpoint")

    async def test_without_a_server(self) -> None:
        queue = Queue("q")
        seen: list[Any] = []

        @queue.job(attempts=2)
        async def work(job: RunningJob) -> None:
            seen.append(job.checkpointed)
            await job.checkpoint(7)
            if len(seen) == 1:
                raise TemporaryError("again")

        with testing.inline(queue):
            await work.enqueue()
        assert seen == [None, 7]


class TestCategories:
    async def test_each_failure_has_exactly_one(self, queue: Queue) -> None:
        async def act(how: str) -> None:
            if how == "temporary":
                raise TemporaryError("busy", ConnectionError("refused"), "1ms")
            if how == "permanent":
                raise PermanentError("bad", ValueError("x"), "E1")
            if how == "system":
                raise MemoryError("full")
            if how == "unknown":
                raise RuntimeError("who knows")
            if how == "timeout":
                await asyncio.Event().wait()

        queue.job(name="act")(act)
        hows = ["temporary", "permanent", "system", "unknown", "timeout"]
        handles = {
            how: await queue.add("act", {"how": how}, attempts=1, timeout="50ms", history=True)
            for how in hows
        }
        async with Worker(queue, concurrency=5).running():
            await eventually(lambda: _all_ended(queue, list(handles.values())), "all have ended")
        jobs = {how: await handle.get() for how, handle in handles.items()}
        for job in jobs.values():
            check(job)
            assert [one.category for one in job.past_attempts] == [job.category]
        assert {how: job.category for how, job in jobs.items()} == {
            "temporary": "temporary",
            "permanent": "permanent",
            "system": "system",
            "unknown": "temporary",
            "timeout": "timeout",
        }
        assert jobs["permanent"].past_attempts[0].code == "E1"
        assert "ConnectionError: refused" in jobs["temporary"].stacktrace[-1]  # the cause is part of it
        assert "ValueError: x" in jobs["permanent"].stacktrace[-1]

    async def test_a_temporary_failure_is_tried_again_and_a_permanent_one_is_not(self, queue: Queue) -> None:
        runs: list[str] = []

        async def act(how: str) -> None:
            runs.append(how)
            if how == "temporary":
                raise TemporaryError("busy")
            if how == "permanent":
                raise PermanentError("bad")
            if how == "invalid":
                raise ValidationError("x", "at least 1", 0)
            raise RuntimeError("who knows")

        queue.job(name="act")(act)
        hows = {"temporary": 3, "permanent": 1, "invalid": 1, "unknown": 3}
        handles = [await queue.add("act", {"how": how}, attempts=3, backoff="1ms") for how in hows]
        async with Worker(queue, concurrency=4).running():
            await eventually(lambda: _all_ended(queue, handles), "all have ended", 20)
        assert {how: runs.count(how) for how in hows} == hows
        assert [(await handle.get()).state for handle in handles] == [
            *(State.DEAD_LETTER, State.FAILED, State.FAILED, State.DEAD_LETTER),
        ]

    async def test_a_process_that_crashes_is_a_system_failure_and_may_be_the_end(self, queue: Queue) -> None:
        queue.job(name="n", run="process")(process_handlers.crash)
        again = await queue.add("n", {"how": "exit"}, attempts=2, backoff="1ms")
        once = await queue.add("n", {"how": "exit"}, attempts=2, backoff="1ms", retry_system=False)
        async with Worker(queue, concurrency=2).running():
            await eventually(lambda: _all_ended(queue, [again, once]), "both have ended")
        first, second = await again.get(), await once.get()
        assert (first.category, first.attempts_made, first.state) == ("system", 2, State.DEAD_LETTER)
        assert (second.category, second.attempts_made, second.state) == ("system", 1, State.FAILED)


async def _all_ended(queue: Queue, handles: list[Any]) -> bool:
    return all([await ended(queue, handle.id) for handle in handles])
