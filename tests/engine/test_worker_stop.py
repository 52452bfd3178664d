"""A worker that is told to stop while a claim is under way starts nothing of what that claim brings."""

from __future__ import annotations

import asyncio

from oxcart import Worker
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.port import Ask, Claimed
from tests.conftest import MakeQueue

LIMIT = 20.0


async def test_jobs_of_a_late_claim_are_given_back_unstarted(make_queue: MakeQueue) -> None:
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
