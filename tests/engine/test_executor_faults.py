"""Handlers and middleware that end in unusual ways: the attempt finishes, and the slot continues."""

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

from oxcart import RunningJob, SyncRunningJob
from oxcart.engine.executor import Call
from tests.engine import process_handlers
from tests.engine.test_executor import Bench


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench(2)
    yield made
    await made.executor.close()


class Odd(BaseException):
    """Not an ``Exception``, like the control flow of some frameworks and test tools."""


class TestEveryErrorEndsItsAttempt:
    async def test_an_iterator_that_ends_in_a_thread(self, bench: Bench) -> None:
        def handler() -> int:
            return next(iter(()))

        async with asyncio.timeout(60):
            outcome = await bench.one(handler, attempts=1)
        assert outcome.kind == "f"
        assert b"StopIteration" in outcome.value + outcome.stack

    async def test_stop_iteration_in_a_process_fails_the_attempt(self, bench: Bench) -> None:
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
        """A handler may leave a callback that cancels the task it ran in."""
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

    @pytest.mark.slow
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

        def sleeps(job: SyncRunningJob) -> None:
            job.wait_cancelled(30)
            time.sleep(0.2)

        bench = Bench(1, middleware=(deaf,))
        try:
            async with asyncio.timeout(60):
                outcome = await bench.one(sleeps, timeout=0.1, attempts=1)
            assert outcome.category == "timeout"
        finally:
            await bench.executor.close()


async def test_a_handler_process_leaves_signals_to_its_worker(bench: Bench) -> None:
    """A supervisor may send SIGTERM to every process of a service; the job may still finish."""
    (pid, slow) = (await bench.one(process_handlers.whoami, run="process"), process_handlers.rests)
    bench.give(slow, run="process", data={"seconds": 1.0}, attempts=1)
    await asyncio.sleep(0.3)
    os.kill(int(pid.value), signal.SIGTERM)
    assert (await bench.until(2))[-1].kind == "c"
