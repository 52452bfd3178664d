"""The worker as a whole, on a real server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from oxcart import Queue, RunningJob, TemporaryError, Worker
from oxcart.broker.connection import Reconnect
from oxcart.broker.port import Ask, Code, Outcome
from oxcart.engine.executor import Call
from oxcart.model.errors import BrokerUnavailable, ValidationError
from oxcart.model.failure import Category, Classifier, Rule
from tests.conftest import MakeQueue
from tests.engine import process_handlers
from tests.signals import eventually


async def counts(queue: Queue) -> dict[str, int]:
    return {state: number for state, number in (await queue.counts()).items() if number}


async def completed(queue: Queue, number: int) -> bool:
    return (await queue.counts())["completed"] == number


class TestArguments:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"concurrency": 0}, "concurrency must be at least 1, got 0"),
            ({"concurrency": -1}, "concurrency must be at least 1, got -1"),
            ({"concurrency": 1.5}, "concurrency must be an integer, at least 1, got 1.5"),
            ({"concurrency": True}, "concurrency must be an integer, at least 1, got True"),
            ({"max_stalled": -1}, "max_stalled must be at least 0, got -1"),
            ({"max_started": 0}, "max_started must be at least 1, got 0"),
            ({"metrics": -1}, "metrics must be at least 0, got -1"),
            ({"max_stalled": "x"}, "max_stalled must be an integer, at least 0, got 'x'"),
            ({"limiter": (0, 1)}, "limiter must be at least 1, got 0"),
            ({"limiter": (1.5, 1)}, "limiter must be an integer, at least 1, got 1.5"),
            ({"limiter": 5}, r"limiter must be \(jobs, duration\), got 5"),
            ({"lock_duration": 0}, "lock_duration must be at least 100 ms"),
            ({"lock_duration": 1, "renew_every": 1}, "renew_every must be less than lock_duration"),
            ({"stalled_interval": 0}, "stalled_interval must be at least"),
            ({"timeout": 0}, "timeout must be at least 1 ms"),
            ({"shutdown_timeout": -1}, "shutdown_timeout must be at least 0"),
            ({"limiter": (5, 0)}, "limiter must be at least 1 ms"),
            ({"remove_on_complete": -1}, "remove_on_complete must be"),
            ({"remove_on_fail": "x"}, "remove_on_fail must be"),
        ],
    )
    def test_bad_arguments_raise(self, options: Any, message: str) -> None:
        with pytest.raises(ValidationError, match=message):
            Worker(Queue("q"), **options)

    def test_needs_a_queue(self) -> None:
        with pytest.raises(ValidationError, match="queues must be at least one queue"):
            Worker()

    def test_id_and_name(self) -> None:
        worker = Worker(Queue("q"))
        host, pid, tail = worker.id.rsplit("-", 2)
        assert host
        assert pid.isdigit()
        assert len(tail) == 6
        assert int(tail, 16) >= 0
        assert worker.name == worker.id
        assert Worker(Queue("q"), name="ada").name == "ada"


class TestRunning:
    async def test_every_kind_of_handler(self, queue: Queue) -> None:
        @queue.job
        async def in_loop(x: int) -> int:
            return x + 1

        @queue.job
        def in_thread(x: int) -> int:
            return x + 2

        queue.job(run="process")(process_handlers.double)
        async with Worker(queue, concurrency=3).running() as worker:
            jobs = [
                await in_loop.enqueue(1),
                await in_thread.enqueue(1),
                await queue.add("double", {"number": 4}),
            ]
            assert await asyncio.gather(*(job.result(timeout=30) for job in jobs)) == [2, 3, 8]
        assert worker.processed == 3

    async def test_the_running_job_has_its_facts(self, queue: Queue) -> None:
        @queue.job(attempts=2, backoff="1ms")
        async def looks(job: RunningJob, x: int) -> list[Any]:
            if job.attempt == 1:
                await job.update_data({"x": x + 1})
                await job.log("first")
                raise TemporaryError("again")
            await job.update_progress(50)
            return [job.id, job.name, job.data, job.queue, job.attempt, job.attempts_made, job.fencing]

        async with Worker(queue, name="w1").running():
            job = await looks.enqueue(1)
            assert await job.result(timeout=20) == [job.id, "looks", {"x": 2}, "q", 2, 1, 2]
        now = await job.get()
        assert (now.progress, now.worker_id, await job.logs()) == (50, "w1", ["first"])

    async def test_concurrency_holds_over_queues(self, make_queue: MakeQueue) -> None:
        queues = [make_queue(name) for name in ("one", "two", "three")]
        now = most = 0
        full = asyncio.Event()

        async def handler() -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            if now == 5:
                full.set()
            await full.wait()
            await asyncio.sleep(0.002)
            now -= 1

        for queue in queues:
            queue.fallback(handler)
            await queue.add_many([("n", None)] * 20)
        async with Worker(*queues, concurrency=5).running() as worker:
            await eventually(lambda: worker.processed == 60, "all jobs")
        assert most == 5

    async def test_queues_are_served_in_turn(self, make_queue: MakeQueue) -> None:
        queues = [make_queue(name) for name in ("one", "two", "three")]
        order: list[str] = []

        async def handler(job: RunningJob) -> None:
            order.append(job.queue)

        for queue in queues:
            queue.fallback(handler)
            await queue.add_many([("n", None)] * 300)
        async with Worker(*queues, concurrency=10).running():
            await eventually(lambda: len(order) == 900, "all jobs")
        first = order[:300]
        assert min(first.count(name) for name in ("one", "two", "three")) >= 50

    async def test_priorities_and_order(self, queue: Queue) -> None:
        order: list[Any] = []
        queue.fallback(lambda job: order.append(job.data))
        for data, options in (
            (4, {"priority": 9}),
            (3, {"priority": 2}),
            (1, {}),
            (2, {}),
            (0, {"lifo": True}),
        ):
            await queue.add("n", data, **options)
        async with Worker(queue).running():
            await eventually(lambda: len(order) == 5, "all jobs")
        assert order == [0, 1, 2, 3, 4]

    async def test_a_delayed_job_runs_when_its_time_has_come(self, queue: Queue) -> None:
        queue.fallback(lambda: time.time())
        async with Worker(queue).running():
            began = time.time()
            job = await queue.add("n", delay="120ms")
            ended = await job.result(timeout=20)
        assert ended - began >= 0.1

    async def test_a_job_added_while_idle_runs_at_once(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its marker wakes the worker, which does not poll."""
        monkeypatch.setattr("oxcart.engine.waiter.POLL", 600.0)
        queue.fallback(lambda: None)
        async with Worker(queue).running():
            await (await queue.add("warm")).result(timeout=20)
            await (await queue.add("n")).result(timeout=20)

    async def test_a_rate_limit(self, queue: Queue) -> None:
        claimed: list[int] = []
        queue.fallback(lambda job: claimed.append(job.started_ms))
        await queue.add_many([("n", None)] * 7)
        async with Worker(queue, concurrency=10, limiter=(3, "150ms")).running():
            await eventually(lambda: len(claimed) == 7, "all jobs")
        claimed.sort()
        assert claimed[3] - claimed[0] >= 100
        assert claimed[6] - claimed[3] >= 100

    async def test_pause_and_resume(self, queue: Queue) -> None:
        queue.fallback(lambda: None)
        await queue.pause()
        async with Worker(queue).running():
            job = await queue.add("n")
            other = Queue("other", server=queue._core.server)
            other.fallback(lambda: None)
            async with Worker(other).running():
                await (await other.add("n")).result(timeout=20)  # enough time to claim the paused job
            assert await job.state() == "waiting"
            await queue.resume()
            await job.result(timeout=20)
            await other.close()

    async def test_global_concurrency_of_the_queue(
        self, queue: Queue, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each finish makes room for the next job, without polling."""
        monkeypatch.setattr("oxcart.engine.waiter.POLL", 600.0)
        now = most = 0
        full = asyncio.Event()

        async def handler() -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            if now == 2:
                full.set()
            await full.wait()
            await asyncio.sleep(0.002)
            now -= 1

        queue.fallback(handler)
        store.hset("bull:q:meta", "concurrency", 2)
        await queue.add_many([("n", None)] * 20)
        async with Worker(queue, concurrency=10).running() as worker:
            await eventually(lambda: worker.processed == 20, "all jobs")
        assert most == 2

    async def test_retention_of_the_worker(self, queue: Queue, store: redis.Redis) -> None:
        queue.fallback(lambda: None)
        await queue.add_many([("n", None)] * 10)
        await queue.add("kept", remove_on_complete=False)
        async with Worker(queue, remove_on_complete=3).running() as worker:
            await eventually(lambda: worker.processed == 11, "all jobs")
        assert store.zcard("bull:q:completed") in (3, 4)

    async def test_a_classifier_and_a_strategy_of_its_own(self, queue: Queue) -> None:
        @queue.job(attempts=3, backoff={"type": "custom", "name": "quick"})
        async def fails(error: str) -> None:
            raise KeyError("x") if error == "key" else TemporaryError("x")

        rule = Rule(category=Category.PERMANENT, types=(KeyError,))
        worker = Worker(
            queue,
            classifier=Classifier().with_rule(rule),
            strategies={"quick": lambda attempt, delay, cap: 1},
        )
        async with worker.running():
            key, temporary = await fails.enqueue("key"), await fails.enqueue("temporary")
            for job in (key, temporary):
                with pytest.raises(Exception, match="failed"):
                    await job.result(timeout=20)
        assert ((await key.get()).attempts_made, (await temporary.get()).attempts_made) == (1, 3)

    async def test_is_seen_by_peers_for_every_queue(self, make_queue: MakeQueue, store: redis.Redis) -> None:
        one, two = make_queue("one"), make_queue("two")
        async with Worker(one, two, name="ada").running() as worker:
            await eventually(lambda: worker.is_connected, "connected")
            names = [client["name"] for client in store.client_list()]
        for queue in (one, two):
            assert queue._core.broker.keys.client_name(":w:ada") in names


class TestLifespan:
    async def test_lifespan_yields_the_state_of_every_job(self, queue: Queue) -> None:
        steps: list[str] = []

        @contextlib.asynccontextmanager
        async def lifespan() -> AsyncIterator[dict[str, int]]:
            steps.append("opened")
            yield {"pool": 5}
            steps.append("closed")

        @queue.job
        async def looks(job: RunningJob) -> int:
            steps.append("ran")
            return int(job.state["pool"])

        async with Worker(queue, lifespan=lifespan).running():
            assert await (await looks.enqueue()).result(timeout=20) == 5
            assert await (await looks.enqueue()).result(timeout=20) == 5
        assert steps == ["opened", "ran", "ran", "closed"]

    async def test_an_error_at_the_start_ends_the_worker(self, queue: Queue) -> None:
        @contextlib.asynccontextmanager
        async def lifespan() -> AsyncIterator[None]:
            if queue.name:
                raise RuntimeError("no database")
            yield

        job = await queue.add("n")
        with pytest.raises(RuntimeError, match="no database"):
            await Worker(queue, lifespan=lifespan).run()
        with pytest.raises(RuntimeError, match="no database"):
            async with Worker(queue, lifespan=lifespan).running():
                pass
        assert await job.state() == "waiting"

    async def test_closes_after_the_last_job(self, queue: Queue) -> None:
        steps: list[str] = []
        started = asyncio.Event()

        @contextlib.asynccontextmanager
        async def lifespan() -> AsyncIterator[None]:
            yield
            steps.append("closed")

        @queue.job
        async def slow() -> None:
            started.set()
            await asyncio.sleep(0.02)
            steps.append("ended")

        async with Worker(queue, lifespan=lifespan).running():
            await slow.enqueue()
            await asyncio.wait_for(started.wait(), 20)
        assert steps == ["ended", "closed"]


class TestMiddleware:
    async def test_around_every_job(self, queue: Queue) -> None:
        around: list[str] = []

        async def layer(job: RunningJob, call_next: Call) -> Any:
            around.append(job.name)
            return await call_next(job)

        queue.fallback(lambda: 1)
        async with Worker(queue, middleware=[layer]).running():
            for name in "abc":
                await (await queue.add(name)).result(timeout=20)
        assert around == ["a", "b", "c"]


class Noted:
    """An observer that records every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args: self.calls.append((name, args))

    def of(self, name: str) -> list[Any]:
        return [args for called, args in self.calls if called == name]


class TestObserver:
    async def test_the_observer_receives_jobs_calls_and_connections(self, queue: Queue) -> None:
        noted = Noted()

        @queue.job(attempts=1)
        async def fails() -> None:
            raise ValueError("x")

        queue.job(name="fine")(lambda: None)
        async with Worker(queue, observer=noted).running() as worker:
            await queue.add("fine")
            await fails.enqueue()
            await eventually(lambda: worker.processed == 2, "both ended")
            await eventually(lambda: noted.of("connection"), "connected")
        assert [args[0].name for args in noted.of("job_started")] == ["fine", "fails"]
        ended: list[tuple[RunningJob, Outcome, Code, float]] = noted.of("job_ended")
        assert [(outcome.kind, code) for _, outcome, code, _ in ended] == [("c", 1), ("f", 1)]
        assert all(0 <= seconds < 60 for *_, seconds in ended)
        assert noted.of("workers") == [(1,), (-1,)]
        assert noted.of("connection")[0] == (True,)
        assert sum(args[1] for args in noted.of("called")) == 2
        assert {"finish", "claim"} <= {verb for verb, _ in noted.of("scripted")}

    async def test_an_observer_that_breaks_costs_no_job(
        self, make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Broken:
            def __getattr__(self, name: str) -> Any:
                def fail(*args: Any) -> None:
                    raise RuntimeError(f"{name} is broken")

                return fail

        queue = make_queue("observed")

        @queue.job
        async def fine(number: int) -> int:
            return number

        async with asyncio.timeout(60), Worker(queue, observer=Broken()).running():
            handles = [await fine.enqueue(number=number) for number in range(5)]
            assert [await handle.result(10) for handle in handles] == [0, 1, 2, 3, 4]
        faults = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
        assert faults.count("job_started is broken") == 1


class TestStop:
    async def test_running_jobs_may_end(self, queue: Queue) -> None:
        started, go = asyncio.Event(), asyncio.Event()

        @queue.job
        async def slow() -> str:
            started.set()
            await go.wait()
            return "ended"

        worker = Worker(queue)
        running = asyncio.create_task(worker.run())
        job, waiting = await slow.enqueue(), await queue.add("slow")
        await asyncio.wait_for(started.wait(), 20)
        worker.stop()
        go.set()
        await asyncio.wait_for(running, 20)
        assert await job.result(timeout=20) == "ended"
        assert await waiting.state() == "waiting"

    async def test_stop_returns_jobs_that_do_not_end(self, queue: Queue) -> None:
        started = asyncio.Event()

        @queue.job
        async def endless() -> None:
            started.set()
            await asyncio.Event().wait()

        job = await endless.enqueue()
        worker = Worker(queue, shutdown_timeout="10ms")
        async with worker.running():
            await asyncio.wait_for(started.wait(), 20)
        assert await job.state() == "waiting"
        now = await job.get()
        assert (now.attempts_made, now.stalled_count, now.attempts_started) == (0, 0, 1)

    async def test_a_deaf_thread_is_abandoned_and_its_job_returned(self, queue: Queue) -> None:
        started = asyncio.Event()
        loop = asyncio.get_running_loop()
        go: list[bool] = []

        @queue.job
        def deaf() -> None:
            loop.call_soon_threadsafe(started.set)
            while not go:
                time.sleep(0.005)

        job = await deaf.enqueue()
        async with Worker(queue, shutdown_timeout="10ms").running():
            await asyncio.wait_for(started.wait(), 20)
        go.append(True)
        assert await job.state() == "waiting"

    async def test_cancelling_the_task_ends_it_in_order(self, queue: Queue) -> None:
        queue.fallback(lambda: None)
        worker = Worker(queue)
        running = asyncio.create_task(worker.run())
        await asyncio.wait_for(worker.started.wait(), 20)
        job = await queue.add("n")
        await job.result(timeout=20)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, 20)
        assert await counts(queue) == {"completed": 1}

    async def test_before_it_has_begun(self, queue: Queue) -> None:
        worker = Worker(queue)
        running = asyncio.create_task(worker.run())
        worker.stop()
        await asyncio.wait_for(running, 20)

    async def test_an_error_in_the_block_stops_it(self, queue: Queue) -> None:
        worker = Worker(queue)
        with pytest.raises(KeyError):
            async with worker.running():
                raise KeyError("x")
        assert not [t for t in asyncio.all_tasks() if t.get_name().startswith("oxcart")]

    async def test_leaves_no_task_behind(self, queue: Queue) -> None:
        queue.fallback(lambda: None)
        async with Worker(queue, concurrency=5).running():
            await (await queue.add("n")).result(timeout=20)
        await queue.close()
        left = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert left == []

    async def test_can_be_run_again(self, queue: Queue) -> None:
        queue.fallback(lambda: 1)
        worker = Worker(queue)
        for _ in range(2):
            async with worker.running():
                assert await (await queue.add("n")).result(timeout=20) == 1


class TestGivingUp:
    async def test_a_server_that_stays_away(self) -> None:
        queue = Queue("q", url="redis://127.0.0.1:1/0")
        policy = Reconnect(initial=0.001, held=0.001, idle=0.001, attempts=3)
        with pytest.raises(BrokerUnavailable, match="gave up after 3 attempts"):
            await asyncio.wait_for(Worker(queue, reconnect=policy).run(), 20)


class TestRecovery:
    @pytest.mark.slow
    async def test_jobs_of_a_lost_worker_run_again(self, queue: Queue, store: redis.Redis) -> None:
        queue.fallback(lambda job: job.attempt)
        job = await queue.add("n")
        lost = queue._core.open_broker()
        assert len((await lost.claim(Ask(1, lock_ms=100))).jobs) == 1
        await lost.close()
        async with Worker(queue, renew_every=0.2, stalled_interval="50ms").running():
            assert await job.result(timeout=20) == 2
        now = await job.get()
        assert (now.stalled_count, now.attempts_made, now.attempts_started) == (1, 1, 2)


async def test_a_queue_that_had_work_is_waited_for_again(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pending claim keeps its queue out of the wait; the wait must restart with it."""
    monkeypatch.setattr("oxcart.engine.waiter.POLL", 600.0)
    queues = [make_queue(name) for name in ("one", "two")]

    async def run(job: RunningJob) -> str:
        return job.queue

    for queue in queues:
        queue.fallback(run)
    async with Worker(*queues).running():
        for queue in (*queues, *queues, *reversed(queues)):
            assert await (await queue.add("n")).result(20) == queue.name


async def test_a_claim_that_stopped_for_its_time_is_followed_by_the_next(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing wakes the worker again, and no job ends before all have started."""
    monkeypatch.setattr("oxcart.engine.waiter.POLL", 600.0)
    monkeypatch.setattr("oxcart.engine.worker.SPELL_US", 1)
    everybody = asyncio.Barrier(30)

    async def meet() -> None:
        await everybody.wait()

    queue.fallback(meet)
    jobs = await queue.add_many([("n", None)] * 30)
    async with Worker(queue, concurrency=30).running():
        for job in jobs:
            await job.result(20)
