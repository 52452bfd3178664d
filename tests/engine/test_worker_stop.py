"""A stopping worker starts no job of a claim that is under way."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from oxcart import Worker
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.port import Ask, Claimed
from tests.conftest import MakeQueue

LIMIT = 20.0


async def test_jobs_of_a_late_claim_are_returned_unstarted(make_queue: MakeQueue) -> None:
    queue = make_queue("late")
    ran: list[str] = []

    @queue.job
    async def never() -> None:
        ran.append("never")

    handle = await never.enqueue()
    worker = Worker(queue)
    claimed = asyncio.Event()
    original = BullMQBroker.claim

    async def claim_then_stop(self: BullMQBroker, ask: Ask) -> Claimed:
        answer = await original(self, ask)
        if answer.jobs:
            worker.stop()
            claimed.set()
        return answer

    BullMQBroker.claim = claim_then_stop  # type: ignore[method-assign]
    try:
        async with asyncio.timeout(LIMIT):
            await worker.run()
    finally:
        BullMQBroker.claim = original  # type: ignore[method-assign]
    assert claimed.is_set()
    assert ran == []
    job = await handle.get()
    assert await handle.state() == "waiting"
    assert (job.attempts_made, job.stalled_count) == (0, 0)


class TestStop:
    async def test_a_claim_that_replies_after_a_cancellation_is_returned(
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
