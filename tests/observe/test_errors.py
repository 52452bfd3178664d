"""The hook for error trackers: which failures it reports, and what a report has."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from oxcart import Cancel, PermanentError, Queue, Retry, RunningJob, TemporaryError, Worker
from oxcart.engine.observer import Observer
from oxcart.errors import JobFailed, ValidationError
from oxcart.observe.errors import Failure, FailureHook
from oxcart.observe.metrics import Metrics
from tests.observe.process_handlers import break_down
from tests.signals import eventually


@pytest.fixture
def seen() -> list[Failure]:
    return []


async def fails(queue: Queue, job: Any, *observers: Observer, **options: Any) -> Worker:
    worker = Worker(queue, observer=observers, **options)
    async with worker.running():
        with pytest.raises(JobFailed):
            await job.result(timeout=30)
        await eventually(lambda: worker.processed, "the end is reported")
    return worker


@pytest.mark.parametrize(("each", "finals"), [("attempt", [False, True]), ("final", [True])])
async def test_attempts_or_final_failures_are_reported(
    queue: Queue, seen: list[Failure], each: Any, finals: list[bool]
) -> None:
    @queue.job(attempts=2, backoff=0.01)
    async def work() -> None:
        raise LookupError("no such row")

    job = await queue.add("work", correlation_id="order-7")
    worker = await fails(queue, job, FailureHook(seen.append, each=each))
    assert [one.is_final for one in seen] == finals
    last = seen[-1]
    assert isinstance(last.error, LookupError)
    assert last.error.__traceback__ is not None
    assert (last.reason, last.category, last.code) == ("no such row", "temporary", "LookupError")
    assert last.retry_in is None
    assert last.fields == {
        "worker_id": worker.id,
        "job_id": job.id,
        "queue": "q",
        "job_name": "work",
        "attempt": 2,
        "correlation_id": "order-7",
        "category": "temporary",
        "final": True,
    }
    if each == "attempt":
        assert seen[0].retry_in == 0.01


async def test_handler_of_a_process_has_the_traceback_of_the_process(
    queue: Queue, seen: list[Failure]
) -> None:
    task = queue.job(run="process", attempts=1)(break_down)
    await fails(queue, await task.enqueue(), FailureHook(seen.append))
    (failure,) = seen
    assert isinstance(failure.error, ArithmeticError)
    assert "in break_down" in str(failure.error.__cause__)


async def test_failure_without_an_exception_has_its_reason(queue: Queue, seen: list[Failure]) -> None:
    @queue.job(attempts=1)
    async def work() -> Retry:
        return Retry(reason="not today")

    @queue.job(attempts=1, timeout=0.02)
    async def hang(job: RunningJob) -> None:
        await job.cancelled()

    await fails(queue, await work.enqueue(), FailureHook(seen.append))
    await fails(queue, await hang.enqueue(), FailureHook(seen.append))
    assert [(type(one.error).__name__, one.category) for one in seen] == [
        ("NoneType", "temporary"),
        ("AttemptTimeout", "timeout"),
    ]
    assert seen[0].reason == "not today"


async def test_cancelled_job_is_no_failure(queue: Queue, seen: list[Failure]) -> None:
    @queue.job
    async def work() -> Cancel:
        return Cancel("sold out")

    await fails(queue, await work.enqueue(), FailureHook(seen.append))
    assert seen == []


async def test_hook_that_fails_costs_no_job_and_no_other_observer(
    queue: Queue, seen: list[Failure], caplog: pytest.LogCaptureFixture
) -> None:
    def broken(failure: Failure) -> None:
        raise OSError("the tracker is away")

    @queue.job(attempts=1)
    async def work() -> None:
        raise PermanentError("no")

    metrics = Metrics()
    await fails(queue, await work.enqueue(), FailureHook(broken), metrics, FailureHook(seen.append))
    assert len(seen) == 1
    assert (
        b'bullmq_jobs_processed_total{name="work",queue="q",status="failed"} 1.0'
        in (await metrics.scrape())[0]
    )
    (error,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert "job_ended failed" in error.message


async def test_observer_is_also_a_layer_around_handlers(queue: Queue) -> None:
    class Around(Observer):
        def __init__(self) -> None:
            self.lines: list[str] = []

        async def around(self, job: RunningJob, call_next: Any) -> Any:
            self.lines.append(f"before {job.name}")
            return await call_next(job)

    @queue.job
    async def work() -> int:
        return 7

    outer = Around()
    job = await work.enqueue()
    async with Worker(queue, observer=outer).running():
        assert await job.result(timeout=30) == 7
    assert outer.lines == ["before work"]


def test_unknown_moment_is_refused() -> None:
    with pytest.raises(ValidationError, match="each must be 'attempt' or 'final', got 'never'"):
        FailureHook(print, each="never")  # type: ignore[arg-type]


async def test_temporary_error_of_a_retry_names_its_delay(queue: Queue, seen: list[Failure]) -> None:
    @queue.job(attempts=2)
    async def work(job: RunningJob) -> None:
        if job.attempt == 1:
            raise TemporaryError("busy", retry_after=0.02)

    job = await work.enqueue()
    async with Worker(queue, observer=FailureHook(seen.append)).running():
        await job.result(timeout=30)
    assert [one.retry_in for one in seen] == [0.02]
