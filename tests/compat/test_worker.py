"""The drop-in's worker: its options, its retry rule, its events, and how it ends."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import redis

from oxcart.compat.bullmq import (
    AbortError,
    DelayedError,
    FlowProducer,
    Job,
    Queue,
    RateLimitError,
    UnrecoverableError,
    WaitingChildrenError,
    WaitingError,
    Worker,
)
from oxcart.model.errors import ValidationError
from tests.compat.conftest import Make, reaches, soon


async def echo(job: Job, token: str) -> Any:
    return job.data


def ended(worker: Worker) -> list[Any]:
    """Returns a list that collects the worker's `completed` and `failed` events."""
    ends: list[Any] = []
    worker.on("completed", lambda job, result: ends.append(("completed", job.id, result)))
    worker.on("failed", lambda job, error: ends.append(("failed", job.id, error)))
    return ends


class TestTheRetryRule:
    @pytest.mark.parametrize(
        "error", [ValueError("x"), PermissionError("x"), NotImplementedError("x"), KeyError("x")]
    )
    async def test_errors_that_oxcart_gives_up_on_are_retried(self, make: Make, error: Exception) -> None:
        async def process(job: Job, token: str) -> None:
            raise error

        queue = make(Queue, "q")
        ends = ended(make(Worker, "q", process))
        job = await queue.add("a", {}, {"attempts": 3})
        await soon(lambda: len(ends) == 3)
        assert [one[2] for one in ends] == [error] * 3
        assert (await queue.getJob(job.id)).attemptsMade == 3

    async def test_only_unrecoverable_error_itself_is_final(self, make: Make) -> None:
        async def process(job: Job, token: str) -> None:
            final = UnrecoverableError("for good")
            raise final if job.name == "final" else ValueError("again") from final

        queue = make(Queue, "q")
        ends = ended(make(Worker, "q", process))
        first = await queue.add("final", {}, {"attempts": 5})
        second = await queue.add("other", {}, {"attempts": 2})
        await soon(lambda: len(ends) == 3)
        assert [one[1] for one in ends] == [first.id, second.id, second.id]

    async def test_a_discarded_job_is_not_tried_again(self, make: Make) -> None:
        async def process(job: Job, token: str) -> None:
            job.discard()
            raise ValueError("enough")

        queue = make(Queue, "q")
        ends = ended(make(Worker, "q", process))
        job = await queue.add("a", {}, {"attempts": 5})
        await soon(lambda: bool(ends))
        assert await job.getState() == "failed"

    async def test_a_strategy_of_the_users_decides_how_long_to_wait(self, make: Make) -> None:
        asked: list[Any] = []

        def strategy(attempt: int, kind: str, error: Exception, job: Job) -> int:
            asked.append((attempt, kind, str(error), job.name))
            return 0 if attempt < 2 else -1

        async def process(job: Job, token: str) -> None:
            raise ValueError(f"attempt {job.attemptsMade + 1}")

        queue = make(Queue, "q")
        ends = ended(make(Worker, "q", process, settings={"backoffStrategy": strategy}))
        await queue.add("a", {}, {"attempts": 9, "backoff": {"type": "mine", "delay": 5}})
        await soon(lambda: len(ends) == 2)
        assert asked == [(1, "mine", "attempt 1", "a"), (2, "mine", "attempt 2", "a")]
        assert await queue.getFailedCount() == 1

    async def test_jitter_shortens_the_wait(self, make: Make, store: redis.Redis) -> None:
        async def process(job: Job, token: str) -> None:
            raise ValueError("again")

        queue = make(Queue, "q")
        ends = ended(make(Worker, "q", process))
        backoff = {"type": "fixed", "delay": 60_000, "jitter": 0.5}
        jobs = [await queue.add("a", {}, {"attempts": 2, "backoff": backoff}) for _ in range(8)]
        await soon(lambda: len(ends) == 8)
        waits = {int(store.hget(f"bull:q:{job.id}", "delay")) for job in jobs}  # type: ignore[arg-type]
        assert all(30_000 <= wait <= 60_000 for wait in waits)
        assert len(waits) > 1


class TestControlFlow:
    async def test_control_flow_error_without_a_move_delays_the_job(self, make: Make) -> None:
        async def process(job: Job, token: str) -> None:
            raise {"d": DelayedError, "c": WaitingChildrenError, "w": WaitingError}[job.name]

        queue = make(Queue, "q")
        make(Worker, "q", process, stalledInterval=60_000, concurrency=3)
        jobs = [await queue.add(name, {}, {"attempts": 1}) for name in "dcw"]
        for job in jobs:
            await reaches(job, "delayed")
            assert (await queue.getJob(job.id)).attemptsMade == 0

    async def test_a_job_can_be_returned(self, make: Make) -> None:
        runs: list[int] = []

        async def process(job: Job, token: str) -> str:
            runs.append(job.attemptsStarted)
            if len(runs) == 1:
                await job.moveToWait(token)
                raise WaitingError
            return "done"

        queue = make(Queue, "q")
        ends = ended(make(Worker, "q", process))
        job = await queue.add("a", {})
        await soon(lambda: bool(ends))
        assert runs == [1, 2]
        assert (await queue.getJob(job.id)).attemptsMade == 1

    @pytest.mark.parametrize("way", ["worker", "queue"])
    async def test_a_rate_limit_returns_the_job_and_holds_the_queue(
        self, make: Make, store: redis.Redis, way: str
    ) -> None:
        limited: list[str] = []
        queue = make(Queue, "q")

        async def process(job: Job, token: str) -> str:
            if not limited:
                limited.append(str(job.id))
                await (worker if way == "worker" else queue).rateLimit(300)
                raise RateLimitError
            return "done"

        worker = make(Worker, "q", process)
        ends = ended(worker)
        job = await queue.add("a", {})
        other = await queue.add("b", {})
        await soon(lambda: len(ends) == 2)
        assert [one[:2] for one in ends] == [("completed", job.id), ("completed", other.id)]
        assert (await queue.getJob(job.id)).attemptsMade == 1
        assert store.hget(f"bull:q:{job.id}", "ats") == "2"

    async def test_a_parent_waits_for_one_child_only(self, make: Make) -> None:
        seen: list[Any] = []

        async def process(job: Job, token: str) -> None:
            done = {"child": {"id": "done", "queue": "bull:kids"}}
            seen.append(await job.moveToWaitingChildren(token, done))
            open_one = {"child": {"id": "open", "queue": "bull:kids"}}
            seen.append(await job.moveToWaitingChildren(token, open_one))
            raise WaitingChildrenError

        queue, kids = make(Queue, "q"), make(Queue, "kids")
        parent = await queue.add("p", {}, {"jobId": "p"})
        for name in ("done", "open"):
            await kids.add("k", {}, {"jobId": name, "parent": {"id": "p", "queue": "bull:q"}})
        by_hand = make(Worker, "kids", None)
        job = await by_hand.getNextJob("t")
        await job.moveToCompleted(5, "t")
        make(Worker, "q", process)
        await reaches(parent, "waiting-children")
        assert seen == [False, True]

    async def test_a_failed_child_fails_a_parent_that_waits(self, make: Make) -> None:
        async def process(job: Job, token: str) -> None:
            kid = await kids.add(
                "k", {}, {"parent": {"id": job.id, "queue": "bull:q"}, "failParentOnFailure": True}
            )
            taken = await by_hand.getNextJob("t")
            assert taken.id == kid.id
            await taken.moveToFailed(UnrecoverableError("no"), "t")
            await job.moveToWaitingChildren(token, {})

        queue, kids, by_hand = make(Queue, "q"), make(Queue, "kids"), make(Worker, "kids", None)
        ends = ended(make(Worker, "q", process))
        await queue.add("p", {}, {"attempts": 3})
        await soon(lambda: bool(ends))
        assert isinstance(ends[0][2], UnrecoverableError)
        assert await queue.getFailedCount() == 1


class TestOptions:
    async def test_without_autorun_it_waits_to_be_run(self, make: Make) -> None:
        worker = make(Worker, "q", echo, autorun=False)
        queue = make(Queue, "q")
        job = await queue.add("a", 5)
        assert not worker.running
        running = asyncio.ensure_future(worker.run())
        await reaches(job, "completed")
        assert worker.running
        await worker.close()
        await running
        assert not worker.running

    async def test_closed_before_it_began(self, make: Make) -> None:
        heard: list[str] = []
        for options in ({}, {"autorun": False}):
            worker = make(Worker, "q", echo, **options)
            worker.on("closed", lambda: heard.append("closed"))
            await worker.close()
            await worker.close()
            assert worker.closed
        assert heard == ["closed", "closed"]

    async def test_concurrency_bounds_running_jobs(self, make: Make) -> None:
        running, most, go = 0, 0, asyncio.Event()

        async def process(job: Job, token: str) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await go.wait()
            running -= 1

        queue = make(Queue, "q")
        worker = make(Worker, "q", process, concurrency=3)
        ends = ended(worker)
        await queue.addBulk([{"name": "a", "data": {}}] * 7)
        await soon(lambda: running == 3)
        assert len(worker.jobs) == 3
        assert {token for _, token in worker.jobs} == {job.token for job, _ in worker.jobs}
        go.set()
        await soon(lambda: len(ends) == 7)
        assert most == 3

    async def test_the_lock_lasts_its_duration(self, make: Make, store: redis.Redis) -> None:
        go = asyncio.Event()

        async def process(job: Job, token: str) -> None:
            await go.wait()

        queue = make(Queue, "q")
        worker = make(Worker, "q", process, lockDuration=5_000)
        ends = ended(worker)
        job = await queue.add("a", {})
        await reaches(job, "active")
        left: Any = store.pttl(f"bull:q:{job.id}:lock")
        assert 0 < left <= 5_000
        assert worker.opts["lockRenewTime"] == 2_500
        go.set()
        await soon(lambda: bool(ends))

    @pytest.mark.slow
    async def test_jobs_of_a_lost_worker_come_back_so_often(self, make: Make, store: redis.Redis) -> None:
        queue = make(Queue, "q")
        lost, often = await queue.add("lost", {}), await queue.add("often", {})
        by_hand = make(Worker, "q", None, lockDuration=30_000)
        for token in ("a", "b"):
            await by_hand.getNextJob(token)
        store.delete(f"bull:q:{lost.id}:lock", f"bull:q:{often.id}:lock")
        store.sadd("bull:q:stalled", str(lost.id), str(often.id))
        store.hset(f"bull:q:{often.id}", "stc", 2)
        worker = make(Worker, "q", echo, stalledInterval=1_000, maxStalledCount=2, autorun=False)
        stalled: list[str] = []
        worker.on("stalled", stalled.append)
        ends = ended(worker)
        running = asyncio.ensure_future(worker.run())
        await soon(lambda: len(ends) == 2)
        assert sorted(stalled) == sorted([lost.id, often.id])
        assert (await queue.getJob(lost.id)).stalledCounter == 1
        failed = await queue.getJob(often.id)
        assert failed.failedReason == "job stalled more than allowable limit"
        assert await failed.isFailed()
        await worker.close()
        await running

    async def test_a_limit_holds_over_workers(self, make: Make) -> None:
        queue = make(Queue, "q")
        limiter = {"max": 1, "duration": 100}
        ends = [ended(make(Worker, "q", echo, limiter=limiter)) for _ in range(2)]
        await queue.addBulk([{"name": "a", "data": i} for i in range(4)])
        await soon(lambda: len(ends[0]) + len(ends[1]) == 4)

    async def test_the_job_overrides_the_workers_retention(self, make: Make) -> None:
        queue = make(Queue, "q")
        ends = ended(make(Worker, "q", echo, removeOnComplete=True))
        gone = await queue.add("a", 1)
        kept = await queue.add("b", 2, {"removeOnComplete": False})
        await soon(lambda: len(ends) == 2)
        assert [await gone.getState(), await kept.getState()] == ["unknown", "completed"]

    async def test_ends_are_counted_for_metrics(self, make: Make) -> None:
        queue = make(Queue, "q")
        ends = ended(make(Worker, "q", echo, metrics={"maxDataPoints": 10}))
        await queue.add("a", 1)
        await soon(lambda: bool(ends))
        assert (await queue.getMetrics("completed"))["meta"]["count"] == 1

    async def test_a_job_that_was_started_too_often_is_not_run(self, make: Make, store: redis.Redis) -> None:
        queue = make(Queue, "q")
        job = await queue.add("a", 1)
        store.hset(f"bull:q:{job.id}", "ats", 5)
        ends = ended(make(Worker, "q", echo, maxStartedAttempts=5))
        await soon(lambda: bool(ends))
        assert str(ends[0][2]) == "job started more than allowable limit"

    async def test_another_prefix_is_another_queue(self, make: Make, store: redis.Redis) -> None:
        queue = make(Queue, "q", prefix="other")
        ends = ended(make(Worker, "q", echo, prefix="other"))
        await queue.add("a", 1)
        await soon(lambda: bool(ends))
        assert store.exists("other:q:completed")
        assert queue.toKey("x") == "other:q:x"

    @pytest.mark.parametrize(
        ("options", "field"),
        [
            ({"concurrency": 0}, "concurrency"),
            ({"lockDuration": 5}, "lock_duration"),
            ({"maxStalledCount": -1}, "max_stalled"),
            ({"limiter": {"max": 0, "duration": 5}}, "limiter"),
            ({"removeOnComplete": "yes"}, "removeOnComplete"),
            ({"backend": "postgres"}, "backend"),
        ],
    )
    async def test_invalid_options_raise_at_once(self, url: str, options: Any, field: str) -> None:
        with pytest.raises(ValidationError, match=field):
            Worker("q", echo, {"connection": url, "autorun": False, **options})

    async def test_a_plain_function_may_process_too(self, make: Make) -> None:
        queue = make(Queue, "q")
        ends = ended(make(Worker, "q", lambda job, token: job.data))
        await queue.add("a", 7)
        await soon(lambda: bool(ends))
        assert ends[0][2] == 7


class TestPauseAndClose:
    async def test_a_queue_that_is_paused_hands_out_nothing(self, make: Make) -> None:
        queue = make(Queue, "q")
        await queue.pause()
        ends = ended(make(Worker, "q", echo))
        await queue.addBulk([{"name": "a", "data": i} for i in range(3)])
        assert await queue.getJobCounts("waiting", "paused", "completed") == {
            "waiting": 3,
            "paused": 0,
            "completed": 0,
        }
        assert ends == []
        await queue.resume()
        await soon(lambda: len(ends) == 3)

    async def test_a_worker_that_is_paused_takes_nothing_while_others_do(self, make: Make) -> None:
        queue = make(Queue, "q")
        idle, other = make(Worker, "q", echo), make(Worker, "q", echo)
        events: list[str] = []
        idle.on("paused", lambda: events.append("paused"))
        idle.on("resumed", lambda: events.append("resumed"))
        await idle.pause()
        idle_ends, ends = ended(idle), ended(other)
        await queue.addBulk([{"name": "a", "data": i} for i in range(5)])
        await soon(lambda: len(ends) == 5)
        assert idle_ends == []
        idle.resume()
        idle.resume()
        assert events == ["paused", "resumed"]

    async def test_close_waits_for_what_runs(self, make: Make) -> None:
        began, go = asyncio.Event(), asyncio.Event()

        async def process(job: Job, token: str) -> str:
            began.set()
            await go.wait()
            return "in the end"

        queue = make(Queue, "q")
        worker = make(Worker, "q", process)
        ends = ended(worker)
        job = await queue.add("a", {})
        await began.wait()
        closing = asyncio.ensure_future(worker.close())
        await asyncio.sleep(0)
        assert not worker.closed
        go.set()
        await closing
        assert ends == [("completed", job.id, "in the end")]
        assert worker.closed

    async def test_a_forced_close_returns_jobs_instead_of_leaving_them_locked(
        self, make: Make, store: redis.Redis
    ) -> None:
        async def process(job: Job, token: str) -> None:
            await asyncio.Event().wait()

        queue = make(Queue, "q")
        worker = make(Worker, "q", process)
        job = await queue.add("a", {})
        await reaches(job, "active")
        await worker.close(force=True)
        assert await job.getState() == "waiting"
        assert not store.exists(f"bull:q:{job.id}:lock")

    async def test_running_jobs_finish_after_a_cancelled_close(self, make: Make) -> None:
        go = asyncio.Event()

        async def process(job: Job, token: str) -> None:
            await go.wait()

        queue = make(Queue, "q")
        worker = make(Worker, "q", process)
        job = await queue.add("a", {})
        await reaches(job, "active")
        closing = asyncio.ensure_future(worker.close())
        await asyncio.sleep(0)
        closing.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert worker.closed
        assert await job.getState() == "completed"


class TestSignals:
    async def test_a_lost_lock_sets_the_signal(self, make: Make, store: redis.Redis) -> None:
        seen: list[Any] = []

        async def process(job: Job, token: str, signal: Any) -> None:
            seen.append("began")
            await signal.wait()
            seen.append((signal.aborted, signal.reason))
            signal.throw_if_aborted()

        queue = make(Queue, "q")
        worker = make(Worker, "q", process, lockDuration=30_000, lockRenewTime=100, skipStalledCheck=True)
        lost: list[Any] = []
        worker.on("lockRenewalFailed", lost.append)
        errors: list[Any] = []
        worker.on("error", lambda error, *rest: errors.append(error))
        job = await queue.add("a", {})
        await soon(lambda: seen == ["began"])
        store.set(f"bull:q:{job.id}:lock", "another's")
        await soon(lambda: len(seen) == 2)
        assert seen[1] == (True, "lease lost")
        await soon(lambda: lost == [[job.id]] and bool(errors))
        assert str(errors[0]) == f"could not renew lock for job {job.id}"

    async def test_a_processor_can_be_cancelled(self, make: Make) -> None:
        async def process(job: Job, token: str, signal: Any) -> None:
            await signal.wait()
            signal.throw_if_aborted()

        queue = make(Queue, "q")
        worker = make(Worker, "q", process)
        ends = ended(worker)
        job = await queue.add("a", {})
        await soon(lambda: worker.cancelJob(job.id, "not needed"))
        await soon(lambda: bool(ends))
        assert isinstance(ends[0][2], AbortError)
        assert str(ends[0][2]) == "not needed"

    async def test_renewed_locks_emit_an_event(self, make: Make) -> None:
        go = asyncio.Event()

        async def process(job: Job, token: str) -> None:
            await go.wait()

        queue = make(Queue, "q")
        worker = make(Worker, "q", process, lockDuration=30_000, lockRenewTime=100)
        renewed: list[Any] = []
        worker.on("locksRenewed", renewed.append)
        job = await queue.add("a", {})
        await soon(lambda: bool(renewed))
        assert renewed[0] == {"count": 1, "jobIds": [job.id]}
        go.set()

    async def test_leases_tracked_by_hand_are_renewed(self, make: Make, store: redis.Redis) -> None:
        queue = make(Queue, "q")
        worker = make(Worker, "q", None, lockDuration=30_000, lockRenewTime=100)
        renewed: list[Any] = []
        worker.on("locksRenewed", renewed.append)
        await queue.add("a", {})
        job = await worker.getNextJob("t")
        worker.lockManager.track_job(job.id, "t", 1)
        worker.lockManager.start()
        await soon(lambda: len(renewed) >= 3)
        assert store.get(f"bull:q:{job.id}:lock") == "t"
        assert await job.extendLock("t", 60_000) == 1
        assert await job.extendLock("another's", 60_000) == 0


class TestListeners:
    async def test_a_listener_that_raises_costs_no_job(self, make: Make) -> None:
        queue = make(Queue, "q")
        worker = make(Worker, "q", echo)

        def breaks(job: Job, result: Any) -> None:
            raise RuntimeError("a listener's own fault")

        errors: list[str] = []
        worker.on("completed", breaks)
        worker.on("error", lambda error, *rest: errors.append(str(error)))
        ends = ended(worker)
        jobs = await queue.addBulk([{"name": "a", "data": i} for i in range(3)])
        await soon(lambda: len(ends) == 3)
        assert errors == ["a listener's own fault"] * 3
        assert [await job.getState() for job in jobs] == ["completed"] * 3

    async def test_a_result_that_came_too_late_is_an_error(self, make: Make, store: redis.Redis) -> None:
        async def process(job: Job, token: str) -> None:
            store.set(f"bull:q:{job.id}:lock", "another's")
            store.hincrby(f"bull:q:{job.id}", "ats", 1)

        queue = make(Queue, "q")
        worker = make(Worker, "q", process, skipStalledCheck=True)
        errors: list[Any] = []
        worker.on("error", lambda *args: errors.append(args))
        ends = ended(worker)
        job = await queue.add("a", {})
        await soon(lambda: bool(errors))
        assert (type(errors[0][0]).__mro__[1], errors[0][1].id) == (TypeError, job.id)
        assert ends == []


async def test_a_job_reads_its_record_lazily(make: Make) -> None:
    """This makes the drop-in fast: a processor without wishes costs nothing extra."""
    seen: list[Any] = []

    async def process(job: Job, token: str) -> None:
        seen.append(("data" in vars(job), job.data, "data" in vars(job), job.attemptsStarted))

    queue = make(Queue, "q")
    ends = ended(make(Worker, "q", process))
    await queue.add("a", {"x": 1})
    await soon(lambda: bool(ends))
    assert seen == [(False, {"x": 1}, True, 1)]
    with pytest.raises(AttributeError, match="nonsense"):
        _ = Job(queue, "a", {}).nonsense


async def test_deferred_failures_emit_failed(make: Make) -> None:
    producer, queue, kids = make(FlowProducer), make(Queue, "q"), make(Queue, "kids")

    async def fails(job: Job, token: str) -> None:
        raise ValueError("no")

    flow = {
        "name": "p",
        "queueName": "q",
        "children": [
            {"name": "k", "queueName": "kids", "opts": {"failParentOnFailure": True, "jobId": "kid"}}
        ],
    }
    parent = (await producer.add(flow))["job"]
    ends = ended(make(Worker, "q", echo))
    make(Worker, "kids", fails)
    await soon(lambda: bool(ends))
    assert (ends[0][0], ends[0][1], str(ends[0][2])) == ("failed", parent.id, "child bull:kids:kid failed")
    assert isinstance(ends[0][2], UnrecoverableError)
    assert await kids.getFailedCount() == await queue.getFailedCount() == 1


async def test_a_processor_that_holds_the_interpreter_keeps_its_lock(make: Make, store: redis.Redis) -> None:
    """In PyPI's package (bullmq #3183, #1497) a blocked loop stops renewals, and the job runs twice."""
    began = threading.Event()

    async def process(job: Job, token: str) -> int:
        began.set()
        end = asyncio.get_running_loop().time() + 1.5
        count = 0
        while asyncio.get_running_loop().time() < end:
            count += 1
        return count

    queue = make(Queue, "q")
    ends = ended(make(Worker, "q", process, lockDuration=600, stalledInterval=300))
    job = await queue.add("a", {})
    await soon(lambda: bool(ends))
    assert ends[0][0] == "completed"
    assert (store.hget(f"bull:q:{job.id}", "ats"), store.hget(f"bull:q:{job.id}", "stc")) == ("1", None)
