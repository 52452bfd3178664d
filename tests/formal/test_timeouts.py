"""The four timeouts: execution, visibility, submission, lifetime."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import redis

import oxcart.sync
from oxcart import Queue, Worker
from oxcart.broker.port import Ask
from oxcart.engine.checks import read_lease
from oxcart.engine.running import RunningJob
from oxcart.engine.sync_running import SyncRunningJob
from oxcart.model.errors import BrokerTimeout, JobFailed, Unacknowledged, ValidationError
from oxcart.model.job import Job
from oxcart.model.state import State
from tests.broker.bullmq.making import Q
from tests.conftest import MakeQueue
from tests.engine import process_handlers
from tests.formal.test_history import check, look, ways
from tests.servers import ValkeyServer
from tests.signals import eventually


async def ended(queue: Queue, job_id: str) -> bool:
    job = await queue.jobs.get(job_id)
    return job is not None and job.finished_on is not None


class TestExecution:
    @pytest.mark.parametrize("kind", ["async", "thread", "process"])
    async def test_every_kind_of_handler_is_stopped_and_its_late_result_refused(
        self, queue: Queue, kind: str, tmp_path: Path
    ) -> None:
        noticed = asyncio.Event()
        loop = asyncio.get_running_loop()

        async def hang() -> str:
            try:
                await asyncio.Event().wait()
            finally:
                noticed.set()
            return "late"

        def hang_in_thread(job: SyncRunningJob) -> str:
            job.wait_cancelled(20)
            loop.call_soon_threadsafe(noticed.set)
            return "late"

        options: dict[str, Any] = {"attempts": 1, "timeout": "80ms", "history": True}
        if kind == "process":
            queue.job(name="n", run="process")(process_handlers.hang)
            handle = await queue.add("n", {"file": str(tmp_path / "x")}, **options)
            noticed.set()
        else:
            handler: Any = hang if kind == "async" else hang_in_thread
            queue.job(name="n")(handler)
            handle = await queue.add("n", **options)
        async with Worker(queue).running():
            with pytest.raises(JobFailed) as failed:
                await handle.result(20)
            assert failed.value.category == "timeout"
            async with asyncio.timeout(20):
                await noticed.wait()
        job = await handle.get()
        check(job)
        assert (job.state, job.return_value) == (State.DEAD_LETTER, None)
        assert [one.category for one in job.past_attempts] == ["timeout"]

    async def test_it_is_retried_by_default_and_not_if_the_job_forbids_it(self, queue: Queue) -> None:
        runs: list[str] = []

        async def hang(who: str) -> None:
            runs.append(who)
            await asyncio.Event().wait()

        queue.job(name="n")(hang)
        options: dict[str, Any] = {"attempts": 2, "timeout": "20ms", "backoff": "1ms"}
        again = await queue.add("n", {"who": "again"}, **options)
        once = await queue.add("n", {"who": "once"}, retry_timeout=False, **options)
        async with Worker(queue).running():
            await eventually(lambda: ended(queue, again.id), "it has ended")
            await eventually(lambda: ended(queue, once.id), "it has ended")
        assert (runs.count("again"), runs.count("once")) == (2, 1)
        assert ((await again.get()).state, (await once.get()).state) == (State.DEAD_LETTER, State.FAILED)

    async def test_a_handler_may_ask_for_less_never_for_more(self, queue: Queue) -> None:
        async def work(job: RunningJob, ask: str) -> None:
            job.limit_to(ask)
            await asyncio.Event().wait()

        queue.job(name="n")(work)
        less = await queue.add("n", {"ask": "30ms"}, attempts=1, timeout="1h")
        more = await queue.add("n", {"ask": "1h"}, attempts=1, timeout="30ms")
        async with Worker(queue, concurrency=2, shutdown_timeout=1).running():
            await eventually(lambda: ended(queue, less.id), "less time", 20)
            await eventually(lambda: ended(queue, more.id), "not more", 20)
        assert [(await one.get()).category for one in (less, more)] == ["timeout", "timeout"]

    async def test_thread_handler_may_limit_its_own_time(self, queue: Queue) -> None:
        def work(job: SyncRunningJob) -> None:
            job.limit_to("30ms")
            job.wait_cancelled(20)

        queue.job(name="n")(work)
        handle = await queue.add("n", attempts=1)
        async with Worker(queue).running():
            await eventually(lambda: ended(queue, handle.id), "it has ended")
        assert (await handle.get()).category == "timeout"

    async def test_the_default_is_half_an_hour(self, queue: Queue) -> None:
        seen: list[float | None] = []

        async def work(job: RunningJob) -> None:
            seen.append(job.limit)

        queue.job(name="n")(work)
        handle = await queue.add("n")
        async with Worker(queue).running():
            await handle.result(20)
        assert seen == [1800.0]


class TestVisibility:
    async def test_the_default_lease_is_thirty_seconds(self, queue: Queue, store: redis.Redis) -> None:
        """It is renewed after half its duration; stalled checks run every thirty seconds."""
        begun, may_end = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            begun.set()
            await may_end.wait()

        queue.job(name="n")(work)
        handle = await queue.add("n")
        worker = Worker(queue)
        async with worker.running(), asyncio.timeout(20):
            try:
                await begun.wait()
                assert 25_000 < int(store.pttl(f"bull:q:{handle.id}:lock")) <= 30_000
                await eventually(lambda: store.exists("bull:q:stalled-check"), "a look for lost workers")
                assert 25_000 < int(store.pttl("bull:q:stalled-check")) <= 30_000
            finally:
                may_end.set()
            await handle.result(20)
        assert read_lease(30, None) == (30_000, 15.0)

    async def test_a_job_whose_lease_ran_out_runs_again_and_uses_an_attempt(self, queue: Queue) -> None:
        async def work(job: RunningJob) -> int:
            return job.attempt

        queue.job(name="n")(work)
        handle = await queue.add("n", history=True)
        lost = queue._core.open_broker()
        assert len((await lost.claim(Ask(1, lock_ms=50))).jobs) == 1
        await lost.close()
        async with Worker(queue, stalled_interval="50ms").running():
            assert await handle.result(20) == 2
        job = await handle.get()
        check(job)
        assert [(one.outcome, one.category) for one in job.past_attempts] == [
            ("stalled", "system"),
            ("completed", None),
        ]

    async def test_retry_system_false_fails_the_job_of_a_lost_worker(self, queue: Queue) -> None:
        queue.fallback(lambda: 1)
        handle = await queue.add("n", retry_system=False, history=True)
        lost = queue._core.open_broker()
        assert len((await lost.claim(Ask(1, lock_ms=50))).jobs) == 1
        await lost.close()
        async with Worker(queue, stalled_interval="50ms").running():
            await eventually(lambda: ended(queue, handle.id), "it has ended")
        job = await handle.get()
        check(job)
        assert (job.state, job.category) == (State.FAILED, "system")


class TestSubmission:
    async def test_an_add_without_a_server_fails_in_time(self) -> None:
        async with (
            Queue("q", url="redis://127.0.0.1:1/0", add_timeout=0.05) as queue,
            asyncio.timeout(8),  # a busy machine may need some of it
        ):
            with pytest.raises(BrokerTimeout) as caught:
                await queue.add("n")
            assert len(caught.value.job_ids) == 1
            with pytest.raises(Unacknowledged) as many:
                await queue.add_many([("n", number) for number in range(3)])
            assert len(many.value.job_ids) == 3

    async def test_an_add_without_an_answer_may_be_repeated(
        self, valkey: ValkeyServer, make_queue: MakeQueue, store: redis.Redis
    ) -> None:
        queue, hasty = make_queue(), make_queue(add_timeout=0.3)
        await queue.add("first")
        await hasty.counts()  # it is connected
        store.client_pause(60_000, all=False)
        with pytest.raises(Unacknowledged) as caught:
            await hasty.add("n", {"x": 1}, idempotency_key="k")
        store.client_unpause()
        by_id = await queue.add("n", {"x": 1}, job_id=caught.value.job_ids[0], idempotency_key="k")
        by_key = await queue.add("n", {"x": 1}, idempotency_key="k")
        assert by_id.id == by_key.id
        assert store.llen("bull:q:wait") == 2

    def test_the_default_is_thirty_seconds(self) -> None:
        assert Queue("q")._core.add_timeout == 30


class TestLifetime:
    @pytest.mark.parametrize(
        ("options", "left"),
        [
            ({}, "scheduled"),
            ({"priority": 5}, "scheduled"),
            ({"delay": "900ms"}, "delayed"),
        ],
    )
    async def test_it_ends_a_job_that_waits(self, q: Q, store: redis.Redis, options: Any, left: str) -> None:
        await q.add("a", lifetime="1s", history=True, **options)
        await q.add("b")
        assert store.zscore("bull:q:ox:expiring", "a") == q.clock.now + 1000
        assert await q.broker.expire() == 0
        q.clock.now += 1000
        assert await q.broker.expire() == 1
        job = await look(q)
        check(job)
        assert (job.state, job.category, job.dead_reason) == (State.DEAD_LETTER, "timeout", "lifetime")
        assert ways(job)[-1] == (left, "dead_letter")
        assert job.failed_reason == "the job's lifetime is over"
        assert not store.exists("bull:q:ox:expiring")
        assert await q.state("b") == "waiting"

    async def test_it_ends_a_job_between_attempts(self, q: Q) -> None:
        job = await q.active("a", lifetime="1s", history=True)
        await q.end(job, "d", value=b"no", delay_ms=60_000)
        q.clock.now += 1000
        assert await q.broker.expire() == 1
        seen = await look(q)
        check(seen)
        assert ways(seen)[-1] == ("retrying", "dead_letter")

    async def test_running_job_is_ended_by_force_after_the_grace(self, q: Q) -> None:
        job = await q.active("a", lifetime="1s", history=True)
        q.clock.now += 1000
        assert await q.broker.expire(grace_ms=500) == 0
        assert await q.state() == "active"
        q.clock.now += 500
        assert await q.broker.expire(grace_ms=500) == 1
        assert await q.end(job) == -2  # the late result of its worker is refused
        seen = await look(q)
        check(seen)
        assert ways(seen)[-1] == ("running", "dead_letter")
        assert [(one.outcome, one.category) for one in seen.past_attempts] == [("failed", "timeout")]

    async def test_a_handler_is_cancelled_first(self, queue: Queue) -> None:
        cancelled: list[str | None] = []

        async def hang(job: RunningJob) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(job.cancel_reason)

        queue.job(name="n")(hang)
        handle = await queue.add("n", lifetime="1h", history=True)
        # 150 ms are left at its start, however late it starts.
        late = (await handle.get()).timestamp + 3_600_000 - 150
        async with Worker(queue, clock=lambda: late).running():
            with pytest.raises(JobFailed, match="lifetime is over"):
                await handle.result(20)
        assert cancelled == ["lifetime over"]
        job = await handle.get()
        check(job)
        assert (job.state, job.attempts_made) == (State.DEAD_LETTER, 1)

    async def test_a_worker_does_not_start_a_job_whose_lifetime_is_over(self, queue: Queue) -> None:
        ran: list[int] = []
        queue.fallback(lambda: ran.append(1))
        handle = await queue.add("n", lifetime="1s", timestamp=1_600_000_000_000)
        async with Worker(queue, recover=False).running():
            await eventually(lambda: ended(queue, handle.id), "it has ended")
        assert (ran, (await handle.get()).state) == ([], State.DEAD_LETTER)

    async def test_a_worker_sweeps_what_waits(self, queue: Queue) -> None:
        handle = await queue.add("n", lifetime="200ms", delay="150ms", priority=5)
        await queue.pause()
        async with Worker(queue).running():
            await eventually(lambda: ended(queue, handle.id), "it has ended")
        assert (await handle.get()).state is State.DEAD_LETTER

    async def test_a_job_that_ends_in_time_leaves_nothing_behind(self, q: Q, store: redis.Redis) -> None:
        job = await q.active("a", lifetime="1h")
        await q.end(job)
        assert not store.exists("bull:q:ox:expiring")

    async def test_an_entry_without_a_job_is_dropped(self, q: Q, store: redis.Redis) -> None:
        await q.add("a", lifetime="1s")
        await q.broker.remove_job("a")
        q.clock.now += 1000
        assert await q.broker.expire() == 0
        assert not store.exists("bull:q:ox:expiring")

    async def test_many_at_once(self, q: Q, store: redis.Redis) -> None:
        jobs = [q.broker.encode("n", None, _lifetime()) for _ in range(700)]
        await q.broker.add(jobs)
        q.clock.now += 1000
        assert await q.broker.expire() == 700
        assert (store.zcard("bull:q:failed"), store.llen("bull:q:wait")) == (700, 0)

    async def test_jobs_have_no_lifetime_by_default(self, queue: Queue, store: redis.Redis) -> None:
        handle = await queue.add("n")
        assert (await handle.get()).options.lifetime is None
        assert not store.exists("bull:q:ox:expiring")

    async def test_a_queue_has_a_default(self, make_queue: MakeQueue, store: redis.Redis) -> None:
        queue = make_queue(default_lifetime="7d")
        own = await queue.add("n", lifetime="1h")
        other = await queue.add("n")
        none = await queue.add("n", lifetime=None)
        jobs = [await one.get() for one in (own, other, none)]
        assert [job.options.lifetime for job in jobs] == [3_600_000, 604_800_000, None]
        assert store.zcard("bull:q:ox:expiring") == 2

    def test_of_a_queue_without_await(self, url: str) -> None:
        with oxcart.sync.Queue("q", url=url, default_lifetime="7d") as queue:
            job: Job = queue.add("n").get()
            assert job.options.lifetime == 604_800_000

    @pytest.mark.parametrize(
        "options",
        [
            {"lifetime": 0},
            {"lifetime": -1},
            {"lifetime": "soon"},
            {"lifetime": "1m", "delay": "2m"},
            {"timeout": 0},
            {"timeout": -5},
            {"delay": -1},
        ],
    )
    async def test_bad_input_writes_nothing(self, queue: Queue, store: redis.Redis, options: Any) -> None:
        with pytest.raises(ValidationError):
            await queue.add("n", **options)
        with pytest.raises(ValidationError):
            await queue.add_many([("n", 1), ("n", 2, options)])
        assert store.dbsize() == 0


def _lifetime() -> Any:
    from oxcart.model.options import JobOptions

    return JobOptions.build(lifetime="1s")
