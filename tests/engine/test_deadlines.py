"""One timer for all deadlines, set to the nearest."""

from __future__ import annotations

import asyncio

from oxcart.engine.deadlines import Deadlines
from oxcart.engine.running import RunningJob
from tests.engine.making import make_job
from tests.signals import eventually


class Watch:
    def __init__(self) -> None:
        self.running: set[RunningJob] = set()
        self.expired: list[str] = []
        self.deadlines = Deadlines(self.running, lambda job: self.expired.append(job.id))

    def start(self, job_id: str, seconds: float | None, at: float | None = None) -> RunningJob:
        job = make_job(job_id=job_id)
        self.running.add(job)
        if seconds is not None:
            job.deadline = (at or asyncio.get_running_loop().time()) + seconds
            self.deadlines.watch(job.deadline)
        return job


async def test_in_the_order_of_their_time() -> None:
    watch = Watch()
    now = asyncio.get_running_loop().time()
    for job_id, seconds in (("late", 0.03), ("soon", 0.01), ("middle", 0.02), ("never", None)):
        watch.start(job_id, seconds, now)
    await eventually(lambda: len(watch.expired) == 3, "all expired")
    assert watch.expired == ["soon", "middle", "late"]


async def test_deadlines_that_are_due_together() -> None:
    """A delayed loop finds several expired deadlines at once."""
    watch = Watch()
    now = asyncio.get_running_loop().time() - 60
    for number in (5, 2, 8, 1, 9, 4, 7, 0, 3, 6):
        watch.start(str(number), number, now)
    await eventually(lambda: len(watch.expired) == 10, "all expired")
    assert watch.expired == sorted(watch.expired)


async def test_a_nearer_deadline_moves_the_timer() -> None:
    watch = Watch()
    watch.start("far", 3600)
    watch.start("near", 0.005)
    await eventually(lambda: watch.expired == ["near"], "the nearer deadline expired")
    watch.start("nearer than far", 0.005)
    await eventually(lambda: len(watch.expired) == 2, "the next")
    watch.deadlines.close()


async def test_a_job_that_has_ended_is_left_alone() -> None:
    watch = Watch()
    done = watch.start("done", 0.005)
    watch.running.discard(done)
    watch.start("running", 0.01)
    await eventually(lambda: watch.expired == ["running"], "the running job expired")


async def test_a_job_expires_once() -> None:
    watch = Watch()
    job = watch.start("one", 0.001)
    await eventually(lambda: watch.expired == ["one"], "expired")
    assert job.deadline is None
    watch.start("two", 0.001)
    await eventually(lambda: watch.expired == ["one", "two"], "only the second")


async def test_many_jobs_need_one_timer() -> None:
    watch = Watch()
    handles = 0
    loop = asyncio.get_running_loop()
    real = loop.call_at

    def call_at(*args: object, **options: object) -> asyncio.TimerHandle:
        nonlocal handles
        handles += 1
        return real(*args, **options)  # type: ignore[arg-type]

    loop.call_at = call_at  # type: ignore[method-assign]
    for number in range(1000):
        watch.start(str(number), 1800)
    assert handles == 1
    watch.deadlines.close()


async def test_closing_forgets_all() -> None:
    watch = Watch()
    watch.start("one", 0.001)
    watch.deadlines.close()
    await asyncio.sleep(0.01)
    assert watch.expired == []
    watch.start("two", 0.001)
    await eventually(lambda: "two" in watch.expired, "can be used again")
