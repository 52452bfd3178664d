"""Ways in which a job could be held and never ended, or a worker stand still."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from oxcart import RunningJob, Worker
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.port import Ask, Claimed, Recovered
from oxcart.engine.executor import Call
from oxcart.engine.leases import Leases
from oxcart.engine.recovery import Recovery
from tests.conftest import MakeQueue
from tests.engine import process_handlers
from tests.engine.making import make_job
from tests.engine.test_executor import Bench
from tests.signals import eventually


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench(2)
    yield made
    await made.executor.close()


class Odd(BaseException):
    """No ``Exception``, as the control flow of some frameworks and test tools is."""


class TestEveryErrorEndsItsAttempt:
    async def test_an_iterator_that_ends_in_a_thread(self, bench: Bench) -> None:
        def handler() -> int:
            return next(iter(()))

        async with asyncio.timeout(60):
            outcome = await bench.one(handler, attempts=1)
        assert outcome.kind == "f"
        assert b"StopIteration" in outcome.value + outcome.stack

    async def test_and_in_a_process(self, bench: Bench) -> None:
        async with asyncio.timeout(60):
            outcome = await bench.one(process_handlers.runs_dry, run="process", attempts=1)
        assert outcome.kind == "f"
        assert b"StopIteration" in outcome.value + outcome.stack

    @pytest.mark.parametrize("where", ["loop", "thread"])
    @pytest.mark.parametrize("error", [Odd("odd"), BaseExceptionGroup("odd", [Odd()])])
    async def test_an_error_that_is_no_exception(
        self, bench: Bench, where: str, error: BaseException
    ) -> None:
        def in_thread() -> None:
            raise error

        async def in_loop() -> None:
            raise error

        async with asyncio.timeout(60):
            outcome = await bench.one(in_loop if where == "loop" else in_thread, attempts=1)
        assert outcome.kind == "f"
        assert b"odd" in outcome.value


class TestSlots:
    async def test_a_late_cancellation_of_a_slot_does_not_stop_the_others(self, bench: Bench) -> None:
        """A handler may leave behind something that cancels the task it ran in."""
        tasks: list[asyncio.Task[Any]] = []

        async def leaves_a_trap() -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.append(task)

        await bench.one(leaves_a_trap)
        bench.give(leaves_a_trap)
        tasks[0].cancel()  # between the waking of the slot and its next step
        async with asyncio.timeout(60):
            await bench.until(2)

    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize("run", ["thread", "process"])
    async def test_a_layer_that_hangs_around_a_thread_or_process_is_ended(self, when: str, run: str) -> None:
        async def hangs(job: RunningJob, call: Call) -> Any:
            if when == "after":
                await call(job)
            await asyncio.sleep(60)

        bench = Bench(1, middleware=(hangs,))
        try:
            async with asyncio.timeout(60):
                # Where it hangs after the call, the process should have been started by then.
                limit = 2 if (run, when) == ("process", "after") else 0.1
                outcome = await bench.one(process_handlers.whoami, run=run, timeout=limit, attempts=1)
            assert outcome.category == "timeout"
        finally:
            await bench.executor.close()

    async def test_a_thread_whose_time_was_up_before_it_began(self) -> None:
        async def deaf(job: RunningJob, call: Call) -> Any:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
            return await call(job)

        def sleeps(job: RunningJob) -> None:
            job.wait_cancelled(30)
            time.sleep(0.2)

        bench = Bench(1, middleware=(deaf,))
        try:
            async with asyncio.timeout(60):
                outcome = await bench.one(sleeps, timeout=0.1, attempts=1)
            assert outcome.category == "timeout"
        finally:
            await bench.executor.close()


class TestWorkerEnd:
    async def test_a_claim_that_answers_after_a_cancellation_is_given_back(
        self, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = make_queue("late")
        ran: list[str] = []

        @queue.job
        async def never() -> None:
            ran.append("never")
            await asyncio.sleep(60)

        handle = await never.enqueue()
        original = BullMQBroker.claim
        claimed = asyncio.Event()

        async def slow_claim(self: BullMQBroker, ask: Ask) -> Claimed:
            answer = await original(self, ask)
            if answer.jobs:
                claimed.set()
                await asyncio.sleep(0.3)
            return answer

        monkeypatch.setattr(BullMQBroker, "claim", slow_claim)
        task = asyncio.create_task(Worker(queue, shutdown_timeout=5).run())
        async with asyncio.timeout(60):
            await claimed.wait()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        assert ran == []
        assert await handle.state() == "waiting"

    async def test_a_slow_clean_up_is_no_second_return(
        self, make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue = make_queue("deaf")
        started = asyncio.Event()

        @queue.job
        async def cleans_up() -> None:
            started.set()
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.5)

        handle = await cleans_up.enqueue()
        worker = Worker(queue, shutdown_timeout=0)
        async with asyncio.timeout(60), worker.running():
            await started.wait()
        assert await handle.state() == "waiting"
        assert "refused" not in caplog.text

    async def test_a_stop_before_the_start_is_kept(self, make_queue: MakeQueue) -> None:
        worker = Worker(make_queue("early"))
        task = asyncio.create_task(worker.run())
        worker.stop()  # the task has not begun
        async with asyncio.timeout(60):
            await task

    async def test_an_observer_that_breaks_costs_no_job(
        self, make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Broken:
            def __getattr__(self, name: str) -> Any:
                def told(*args: Any) -> None:
                    raise RuntimeError(f"{name} is broken")

                return told

        queue = make_queue("observed")

        @queue.job
        async def fine(number: int) -> int:
            return number

        async with asyncio.timeout(60), Worker(queue, observer=Broken()).running():
            handles = [await fine.enqueue(number=number) for number in range(5)]
            assert [await handle.result(10) for handle in handles] == [0, 1, 2, 3, 4]
        faults = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
        assert faults.count("job_started is broken") == 1


class TestLeases:
    def make(self, lost: Any) -> Leases:
        station = {"url": "redis://127.0.0.1:1", "folder": "", "queue": "q", "prefix": "bull"}
        return Leases(1000, 0.5, [station], lost=lost, renewed=lambda *_: None, failed=lambda *_: None)

    async def test_whatever_the_renewer_says_another_is_started(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        heard: list[Any] = []

        def hear(self: Leases, message: dict[str, Any]) -> None:
            heard.append(message)
            raise ValueError("a line too long, or one that is no message")

        monkeypatch.setattr(Leases, "_hear", hear)
        leases = self.make(lambda *_: None)
        leases.hold(0, [make_job()], [None])
        leases.start()
        try:
            await eventually(lambda: len(heard) >= 2, "another renewer")
        finally:
            await leases.close()

    async def test_many_leases_lost_at_once(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
        jobs = [make_job(job_id=f"{number:036}") for number in range(5000)]
        token, starts = jobs[0].token, jobs[0].fencing
        fake = tmp_path / "renewer"
        fake.write_text(
            "#!/bin/sh\n"
            'exec python3 -c "import marshal, os, sys; '
            f"leases = [('%036d' % n, '{token}', {starts}) for n in range(5000)]; "
            "body = marshal.dumps({'refused': 0, 'leases': leases}); "
            "os.write(1, len(body).to_bytes(4, 'big') + body); "
            'sys.stdin.buffer.read()"\n'
        )
        fake.chmod(0o755)
        monkeypatch.setattr("sys.executable", str(fake))
        lost: list[str] = []
        leases = self.make(lambda station, job_id: lost.append(job_id))
        leases.hold(0, jobs, [None] * len(jobs))
        leases.start()
        try:
            await eventually(lambda: lost, "the refusals")
        finally:
            await leases.close()
        assert lost == [job.id for job in jobs]


async def test_a_handler_process_leaves_signals_to_its_worker(bench: Bench) -> None:
    """A supervisor may send SIGTERM to every process of a service; the job is to end in its time."""
    (pid, slow) = (await bench.one(process_handlers.whoami, run="process"), process_handlers.rests)
    bench.give(slow, run="process", data={"seconds": 1.0}, attempts=1)
    await asyncio.sleep(0.3)
    os.kill(int(pid.value), signal.SIGTERM)
    assert (await bench.until(2))[-1].kind == "c"


async def test_a_guard_that_does_not_say_when_it_ends_is_not_asked_all_the_time() -> None:
    class Guarded:
        queue = "q"
        next_expiry = 0
        asked = 0

        async def recover(self, **_: Any) -> Recovered:
            self.asked += 1
            return Recovered([], False, 0)

        async def promote(self, most: int) -> tuple[int, int]:
            return 0, 0

    broker: Any = Guarded()
    recovery = Recovery(broker, interval=30, max_stalled=1, recovered=lambda _: None, skipped=lambda: None)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.4):
            await recovery.run()
    assert broker.asked <= 2
