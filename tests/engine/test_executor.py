"""The executor: slots, isolation of jobs, timeouts, stops, and the outcome of an attempt."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from oxcart import RunningJob, SyncRunningJob, current_job
from oxcart.broker.port import Outcome, OutcomeKind
from oxcart.engine.executor import LEASE_LOST, SHUTDOWN, Call, Executor
from oxcart.engine.processes import HandlerProcesses
from oxcart.engine.verdict import Verdict
from oxcart.model.failure import PermanentError
from tests.engine import process_handlers
from tests.engine.making import NOW, make_handler, make_job
from tests.signals import eventually


class Bench:
    """An executor and the reports of its attempts."""

    def __init__(self, concurrency: int, **options: Any) -> None:
        self.ended: list[tuple[RunningJob, Outcome]] = []
        self.news = asyncio.Event()
        verdict = Verdict(clock=lambda: NOW, rand=lambda: 0.5)
        self.executor = Executor(concurrency, verdict, self._done, processes=HandlerProcesses(), **options)

    def _done(self, job: RunningJob, outcome: Outcome) -> None:
        self.ended.append((job, outcome))
        self.news.set()

    def give(
        self,
        function: Callable[..., Any],
        count: int = 1,
        *,
        run: Any = None,
        handler: Any = None,
        **options: Any,
    ) -> list[RunningJob]:
        handled = make_handler(function, run=run, **(handler or {}))
        jobs = [make_job(handler=handled, job_id=f"{id(function)}-{i}", **options) for i in range(count)]
        for job in jobs:
            job.limit = self.executor.limit_of(job)
        self.executor.give(jobs)
        return jobs

    async def until(self, count: int) -> list[Outcome]:
        async with asyncio.timeout(60):
            while len(self.ended) < count:
                self.news.clear()
                await self.news.wait()
        return [outcome for _, outcome in self.ended]

    async def one(self, function: Callable[..., Any], **options: Any) -> Outcome:
        self.give(function, **options)
        return (await self.until(len(self.ended) + 1))[-1]


Make = Callable[..., Bench]


@pytest_asyncio.fixture
async def make_bench() -> AsyncIterator[Make]:
    made: list[Bench] = []

    def make(concurrency: int = 1, **options: Any) -> Bench:
        made.append(Bench(concurrency, **options))
        return made[-1]

    yield make
    for bench in made:
        await bench.executor.close()


async def fine() -> str:
    return "fine"


class TestSlots:
    @pytest.mark.parametrize("concurrency", [1, 3, 10])
    async def test_never_more_at_once_than_there_are_slots(self, make_bench: Make, concurrency: int) -> None:
        bench = make_bench(concurrency)
        now, most = 0, 0
        full = asyncio.Event()

        async def handler() -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            if now == concurrency:
                full.set()
            await full.wait()
            await asyncio.sleep(0.001)
            now -= 1

        bench.give(handler, 40)
        assert {outcome.kind for outcome in await bench.until(40)} == {"c"}
        assert most == concurrency
        assert bench.executor.load == 0

    async def test_a_slow_job_does_not_hold_up_fast_ones(self, make_bench: Make) -> None:
        bench = make_bench(3)
        go = asyncio.Event()

        async def slow() -> None:
            await go.wait()

        for _ in range(2):
            bench.give(slow)
        bench.give(fine, 50)
        await bench.until(50)
        assert len(bench.executor.running) == 2
        go.set()
        await bench.until(52)

    async def test_jobs_that_never_wait_leave_room_for_others(self, make_bench: Make) -> None:
        """A slot that runs one job after another must not keep a waiting job from starting."""
        bench = make_bench(2)
        order: list[str] = []

        async def quick() -> None:
            order.append("quick")

        async def waits() -> None:
            order.append("begins")
            await asyncio.sleep(0)
            order.append("ends")

        bench.give(quick, 5)
        bench.give(waits)
        bench.give(quick, 5)
        await bench.until(11)
        assert order.count("quick") == 10

    async def test_jobs_start_in_order(self, make_bench: Make) -> None:
        bench = make_bench(4)
        started: list[str] = []

        async def handler(job: RunningJob) -> None:
            started.append(job.id)
            await asyncio.sleep(0)

        jobs = bench.give(handler, 20)
        await bench.until(20)
        assert started == [job.id for job in jobs]

    async def test_unstarted_jobs_can_be_returned(self, make_bench: Make) -> None:
        bench = make_bench(1)
        go = asyncio.Event()

        async def slow() -> None:
            await go.wait()

        jobs = bench.give(slow, 3)
        await eventually(lambda: bench.executor.running, "the first runs")
        assert bench.executor.take_back() == jobs[1:]
        assert bench.executor.load == 1
        go.set()
        await bench.until(1)
        await bench.executor.idle(1)

    async def test_the_worker_goes_on_after_any_error(self, make_bench: Make) -> None:
        bench = make_bench(2)

        async def fails(error: int) -> None:
            errors: list[BaseException] = [
                ValueError("x"),
                SystemExit(3),
                KeyboardInterrupt(),
                GeneratorExit(),
            ]
            raise errors[error]

        for number in range(4):
            bench.give(fails, data={"error": number})
        bench.give(fine, 3)
        outcomes = await bench.until(7)
        assert [outcome.kind for outcome in outcomes].count(OutcomeKind.DELAY) == 4
        assert [outcome.kind for outcome in outcomes].count(OutcomeKind.COMPLETED) == 3


class TestIsolation:
    async def test_a_context_variable_does_not_leak_to_the_next_job(self, make_bench: Make) -> None:
        bench = make_bench(1)
        variable: contextvars.ContextVar[str] = contextvars.ContextVar("v", default="clean")
        seen: list[str] = []

        async def leaks() -> None:
            seen.append(variable.get())
            variable.set("dirty")

        bench.give(leaks, 5)
        await bench.until(5)
        assert seen == ["clean"] * 5

    async def test_context_variables_of_the_starter_do_not_reach_jobs(self, make_bench: Make) -> None:
        variable: contextvars.ContextVar[str] = contextvars.ContextVar("v", default="clean")
        variable.set("outside")
        bench = make_bench(1)

        async def looks() -> str:
            return variable.get()

        assert (await bench.one(looks)).value == b'"clean"'

    async def test_context_variables_of_a_thread_do_not_leak(self, make_bench: Make) -> None:
        bench = make_bench(1)
        variable: contextvars.ContextVar[str] = contextvars.ContextVar("v", default="clean")

        def leaks() -> str:
            before = variable.get()
            variable.set("dirty")
            return before

        bench.give(leaks, 5)
        assert {outcome.value for outcome in await bench.until(5)} == {b'"clean"'}

    async def test_the_current_job_is_ones_own(self, make_bench: Make) -> None:
        bench = make_bench(5)

        async def looks(job: RunningJob) -> bool:
            before = current_job() is job
            await asyncio.sleep(0.001)
            inner = asyncio.create_task(same(job))
            return before and current_job() is job and await inner

        async def same(job: RunningJob) -> bool:
            return current_job() is job

        def in_thread(job: SyncRunningJob) -> bool:
            return current_job() is job

        bench.give(looks, 10)
        bench.give(in_thread, 10)
        assert {outcome.value for outcome in await bench.until(20)} == {b"true"}
        assert current_job() is None

    async def test_a_handler_that_cancels_itself_ends_its_attempt_alone(self, make_bench: Make) -> None:
        bench = make_bench(1)

        async def cancels() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

        outcome = await bench.one(cancels)
        assert (outcome.kind, outcome.category) == ("d", "temporary")
        assert (await bench.one(fine)).kind == "c"

    async def test_a_pending_cancellation_does_not_hit_the_next_job(self, make_bench: Make) -> None:
        bench = make_bench(1)

        async def cancels_and_returns() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

        async def waits() -> str:
            await asyncio.sleep(0)
            return "undisturbed"

        bench.give(cancels_and_returns)
        bench.give(waits)
        outcomes = await bench.until(2)
        assert outcomes[1].value == b'"undisturbed"'


class TestThreads:
    async def test_a_plain_function_runs_in_a_thread(self, make_bench: Make) -> None:
        bench = make_bench(2)
        outcome = await bench.one(lambda: threading.current_thread().name)
        assert outcome.value.startswith(b'"oxcart-job')

    async def test_as_many_threads_as_slots(self, make_bench: Make) -> None:
        bench = make_bench(4)
        together = threading.Barrier(4)
        bench.give(lambda: together.wait(10), 4)
        assert len(await bench.until(4)) == 4

    async def test_a_thread_can_speak_to_the_loop(self, make_bench: Make) -> None:
        bench = make_bench(1)

        def speaks(job: SyncRunningJob) -> None:
            job.update_progress(50)
            job.log("a line")

        (job,) = bench.give(speaks)
        await bench.until(1)
        broker: Any = job._broker
        assert broker.calls == [("progress", job.id, 50), ("log", job.id, ["a line"], 1000)]

    async def test_a_thread_is_cancelled_and_abandoned(self, make_bench: Make) -> None:
        bench = make_bench(1)
        ended, noticed = threading.Event(), threading.Event()

        def stubborn(job: SyncRunningJob) -> None:
            assert job.wait_cancelled(20)
            assert ended.wait(20)
            assert job.is_cancelled
            noticed.set()

        outcome = await bench.one(stubborn, timeout="20ms", attempts=1)
        assert (outcome.kind, outcome.category) == ("f", "timeout")
        ended.set()
        assert await asyncio.to_thread(noticed.wait, 20)
        assert (await bench.one(fine)).kind == "c"

    async def test_an_error_in_a_thread(self, make_bench: Make) -> None:
        def fails() -> None:
            raise PermanentError("never")

        outcome = await make_bench(1).one(fails)
        assert (outcome.kind, outcome.category, outcome.value) == ("f", "permanent", b"never")


class TestProcesses:
    async def test_runs_there(self, make_bench: Make) -> None:
        outcome = await make_bench(1).one(process_handlers.whoami, run="process")
        assert int(outcome.value) != os.getpid()

    async def test_a_crash_is_of_the_system(self, make_bench: Make) -> None:
        outcome = await make_bench(1).one(
            process_handlers.crash, run="process", data={"how": "exit"}, attempts=1
        )
        assert (outcome.kind, outcome.category) == ("f", "system")
        assert b"exit code 7" in outcome.value

    async def test_a_timeout_kills(self, make_bench: Make, tmp_path: Any) -> None:
        outcome = await make_bench(1).one(
            process_handlers.hang,
            run="process",
            data={"file": str(tmp_path / "x")},
            timeout="50ms",
            attempts=1,
        )
        assert (outcome.kind, outcome.category) == ("f", "timeout")


class TestTimeouts:
    @pytest.mark.parametrize(
        ("job", "handler", "worker", "limit"),
        [
            ({}, {}, 1800.0, 1800.0),
            ({}, {}, None, None),
            ({}, {"timeout": 5}, 1800.0, 5.0),
            ({"timeout": 7}, {"timeout": 5}, 1800.0, 5.0),
            ({"timeout": 5}, {"timeout": 7}, 1800.0, 5.0),
            ({}, {"timeout": 7}, 5.0, 5.0),
            ({"timeout": 7}, {}, 5.0, 7.0),
            ({"timeout": None}, {"timeout": 5}, 1800.0, 5.0),
            ({"timeout": None}, {}, 1800.0, None),
            ({}, {"timeout": None}, 1800.0, 1800.0),
        ],
    )
    async def test_handler_may_shorten_the_timeout_of_job_or_worker(
        self, make_bench: Make, job: Any, handler: Any, worker: float | None, limit: float | None
    ) -> None:
        bench = make_bench(1, timeout=worker)
        made = make_job(handler=make_handler(fine, **handler), **job)
        assert bench.executor.limit_of(made) == limit

    @pytest.mark.parametrize("where", ["job", "handler", "worker"])
    async def test_ends_the_attempt(self, make_bench: Make, where: str) -> None:
        bench = make_bench(1, timeout=0.02 if where == "worker" else 1800)
        cleaned: list[str | None] = []

        async def hangs(job: RunningJob) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cleaned.append(job.cancel_reason)

        options: dict[str, Any] = {"timeout": "20ms"} if where == "job" else {}
        handler = {"timeout": "20ms"} if where == "handler" else {}
        outcome = await bench.one(hangs, attempts=1, handler=handler, **options)
        assert (outcome.kind, outcome.category) == ("f", "timeout")
        assert outcome.value == b"the attempt took longer than 0.02 s"
        assert cleaned == ["timeout"]
        assert (await bench.one(fine)).kind == "c"

    async def test_is_retried_while_attempts_are_left(self, make_bench: Make) -> None:
        async def hangs() -> None:
            await asyncio.Event().wait()

        outcome = await make_bench(1).one(hangs, attempts=2, timeout="10ms", backoff="3s")
        assert (outcome.kind, outcome.delay_ms) == ("d", 3000)

    async def test_a_result_in_the_last_moment_stands(self, make_bench: Make) -> None:
        async def returns_on_cancellation() -> str:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "in time after all"
            return ""

        bench = make_bench(1)
        outcome = await bench.one(returns_on_cancellation, timeout="10ms")
        assert (outcome.kind, outcome.value) == ("c", b'"in time after all"')
        assert (await bench.one(fine)).kind == "c"

    async def test_an_error_while_it_is_stopped_is_still_a_timeout(self, make_bench: Make) -> None:
        async def fails_to_clean_up() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                raise RuntimeError("the connection was already closed")

        bench = make_bench(1)
        outcome = await bench.one(fails_to_clean_up, timeout="10ms", attempts=1)
        assert (outcome.kind, outcome.category) == ("f", "timeout")
        assert b"the connection was already closed" in outcome.stack
        assert (await bench.one(fine)).kind == "c"

    async def test_a_timeout_of_the_handlers_own_is_its_own(self, make_bench: Make) -> None:
        async def has_its_own() -> None:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()

        outcome = await make_bench(1).one(has_its_own, attempts=1)
        assert (outcome.kind, outcome.category) == ("f", "temporary")


class TestStop:
    @pytest.mark.parametrize("reason", [SHUTDOWN, LEASE_LOST])
    async def test_a_stopped_attempt_is_returned(self, make_bench: Make, reason: str) -> None:
        bench = make_bench(1)

        async def hangs() -> None:
            await asyncio.Event().wait()

        (job,) = bench.give(hangs, attempts=1)
        await eventually(lambda: bench.executor.running, "it runs")
        bench.executor.stop(job, reason)
        (outcome,) = await bench.until(1)
        assert outcome.kind == "w"

    async def test_a_handler_can_wait_for_its_cancellation(self, make_bench: Make) -> None:
        bench = make_bench(1)

        async def polite(job: RunningJob) -> str:
            return await job.cancelled()

        (job,) = bench.give(polite)
        await eventually(lambda: bench.executor.running, "it runs")
        job.cancel(LEASE_LOST)
        (outcome,) = await bench.until(1)
        assert outcome.value == b'"lease lost"'

    async def test_idle_waits_for_the_end(self, make_bench: Make) -> None:
        bench = make_bench(1)
        go = asyncio.Event()

        async def slow() -> None:
            await go.wait()

        bench.give(slow)
        await eventually(lambda: bench.executor.running, "it runs")
        await bench.executor.idle(0.001)
        assert bench.executor.running
        asyncio.get_running_loop().call_soon(go.set)
        await bench.executor.idle(20)
        assert not bench.executor.running

    async def test_close_ends_what_runs(self, make_bench: Make) -> None:
        bench = make_bench(1)
        ended = asyncio.Event()

        async def hangs() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        bench.give(hangs)
        await eventually(lambda: bench.executor.running, "it runs")
        await bench.executor.close()
        assert ended.is_set()
        assert bench.ended == []


class TestMiddleware:
    async def test_order(self, make_bench: Make) -> None:
        steps: list[str] = []

        def layer(name: str) -> Any:
            async def around(job: RunningJob, call_next: Call) -> Any:
                steps.append(f"{name} before")
                try:
                    return await call_next(job)
                finally:
                    steps.append(f"{name} after")

            return around

        async def handler() -> None:
            steps.append("handler")

        await make_bench(1, middleware=(layer("outer"), layer("inner"))).one(handler)
        assert steps == ["outer before", "inner before", "handler", "inner after", "outer after"]

    async def test_sees_results_and_errors_and_may_change_them(self, make_bench: Make) -> None:
        async def layer(job: RunningJob, call_next: Call) -> Any:
            try:
                return {"wrapped": await call_next(job)}
            except ValueError as error:
                raise PermanentError("translated") from error

        bench = make_bench(1, middleware=(layer,))
        assert (await bench.one(fine)).value == b'{"wrapped":"fine"}'

        async def fails() -> None:
            raise ValueError("x")

        outcome = await bench.one(fails)
        assert (outcome.kind, outcome.category, outcome.value) == ("f", "permanent", b"translated")

    async def test_sees_a_payload_that_does_not_fit(self, make_bench: Make) -> None:
        seen: list[str] = []

        async def layer(job: RunningJob, call_next: Call) -> Any:
            try:
                return await call_next(job)
            except PermanentError as error:
                seen.append(error.code or "")
                raise

        async def handler(number: int) -> None: ...

        await make_bench(1, middleware=(layer,)).one(handler, data={"number": "x"})
        assert seen == ["payload"]

    async def test_middleware_error_fails_the_attempt(self, make_bench: Make) -> None:
        async def layer(job: RunningJob, call_next: Call) -> Any:
            raise RuntimeError("the middleware broke")

        bench = make_bench(1, middleware=(layer,))
        outcome = await bench.one(fine, attempts=1)
        assert (outcome.kind, outcome.value) == ("f", b"the middleware broke")

    async def test_may_answer_without_the_handler(self, make_bench: Make) -> None:
        async def layer(job: RunningJob, call_next: Call) -> Any:
            return "instead"

        async def handler() -> None:
            raise AssertionError("not to be called")

        assert (await make_bench(1, middleware=(layer,)).one(handler)).value == b'"instead"'

    async def test_threads_and_processes_have_it_too(self, make_bench: Make) -> None:
        around: list[str] = []

        async def layer(job: RunningJob, call_next: Call) -> Any:
            around.append(job.name)
            return await call_next(job)

        bench = make_bench(1, middleware=(layer,))
        await bench.one(lambda: None, name="thread")
        await bench.one(process_handlers.whoami, run="process", name="process")
        assert around == ["thread", "process"]


class TestBeforeStart:
    async def test_a_job_that_must_not_run_does_not(self, make_bench: Make) -> None:
        ran: list[int] = []

        async def handler() -> None:
            ran.append(1)

        fields = {"defa": "job stalled more than allowable limit"}
        outcome = await make_bench(1).one(handler, fields=fields)
        assert (outcome.kind, outcome.category, ran) == ("f", "system", [])
