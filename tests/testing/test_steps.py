"""Durable steps in inline and manual mode: no job sleeps, and a signal runs the job that waits for it."""

from __future__ import annotations

from typing import Any

import pytest

from oxcart import Queue, RunningJob, SyncRunningJob, Worker
from oxcart.broker.memory import MemoryServer
from oxcart.errors import JobFailed, ResultTimeout
from oxcart.testing import drain, inline, manual
from tests.signals import eventually


def make_queue() -> tuple[Queue, list[str]]:
    queue = Queue("orders", url="redis://127.0.0.1:1")
    calls: list[str] = []

    @queue.job
    async def order(job: RunningJob) -> list[Any]:
        await job.step("charge", calls.append, "charge")
        await job.sleep("3d")
        return [await job.wait_signal("shipped", "7d")]

    @queue.job
    def plain(job: SyncRunningJob) -> list[Any]:
        job.step("charge", calls.append, "charge")
        job.sleep("3d")
        return [job.wait_signal("shipped", "7d")]

    return queue, calls


@pytest.mark.parametrize("name", ["order", "plain"])
async def test_inline_jobs_run_up_to_the_signal_they_wait_for(name: str) -> None:
    queue, calls = make_queue()
    with inline(queue) as report:
        job = await queue.add(name)
        with pytest.raises(ResultTimeout, match="it waits for signal 'shipped'"):
            await job.result()
        assert await job.signal("shipped", "parcel 7") is True
        assert await job.result() == ["parcel 7"]
    assert calls == ["charge"]
    assert len(report.attempts) == 3


async def test_drain_leaves_jobs_that_wait_for_a_signal() -> None:
    queue, calls = make_queue()
    with manual(queue):
        job = await queue.add("order")
        report = await drain(queue)
        assert [one.id for one in report.suspended] == [job.id]
        assert (await job.get()).steps[-1].kind == "wait"
        await job.signal("shipped", 1)
        assert (await job.get()).finished_on is None  # the next drain runs it
        await drain(queue)
        assert await job.result() == [1]
    assert calls == ["charge"]


async def test_a_clock_of_the_test_ends_sleeps_and_timeouts() -> None:
    now = 1_000_000
    queue = Queue("orders", broker=MemoryServer(clock=lambda: now))

    @queue.job
    async def order(job: RunningJob) -> Any:
        await job.sleep("3d")
        return await job.wait_signal("shipped", "7d")

    async def steps() -> list[str]:
        return [step.kind for step in (await job.get()).steps]

    async def delayed(kinds: list[str]) -> bool:
        return await steps() == kinds and await queue.jobs.state(job.id) == "delayed"

    async with Worker(queue).running():
        job = await order.enqueue()
        await eventually(lambda: delayed(["sleep"]), "it sleeps")
        now += 3 * 86_400_000
        await eventually(lambda: delayed(["sleep", "wait"]), "it waits")
        now += 7 * 86_400_000
        with pytest.raises(JobFailed, match="did not arrive in time"):
            await job.result(30)
