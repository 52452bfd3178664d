"""Scheduling rules: no preemption, and lower priorities run when the higher ones are done."""

from __future__ import annotations

import asyncio

from oxcart import Queue, Worker
from oxcart.model.state import State
from tests.conftest import MakeQueue


async def test_a_running_job_is_never_interrupted_for_a_better_one(make_queue: MakeQueue) -> None:
    queue: Queue = make_queue(priorities="formal")
    order: list[str] = []
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work(who: str) -> None:
        order.append(f"{who} begins")
        begun.set()
        await go_on.wait()
        order.append(f"{who} ends")

    queue.job(name="n")(work)
    low = await queue.add("n", {"who": "bulk"}, priority="bulk")
    async with Worker(queue).running():
        await begun.wait()
        high = await queue.add("n", {"who": "critical"}, priority="critical")
        try:
            for _ in range(100):  # time enough for a worker that would claim it
                assert (await high.get()).state is State.SCHEDULED
            assert (order, (await low.get()).state) == (["bulk begins"], State.RUNNING)
        finally:
            go_on.set()
        await high.result(20)
        await low.result(20)
    assert order == ["bulk begins", "bulk ends", "critical begins", "critical ends"]


async def test_low_priorities_run_when_the_others_are_done(make_queue: MakeQueue) -> None:
    queue: Queue = make_queue(priorities="formal")
    order: list[str] = []

    async def work(who: str) -> None:
        order.append(who)

    queue.job(name="n")(work)
    names = ["bulk", "low", "normal", "high", "critical"]
    handles = [await queue.add("n", {"who": name}, priority=name) for name in names for _ in range(2)]
    async with Worker(queue).running():
        for handle in handles:
            await handle.result(20)
    assert order == [name for name in reversed(names) for _ in range(2)]
