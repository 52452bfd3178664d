"""Batch handlers: one call for many jobs, each with a result, a retry and a limit of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import pytest
import redis

from oxcart import (
    Cancel,
    Depends,
    PermanentError,
    Queue,
    Retry,
    RunningJob,
    SyncRunningJob,
    TemporaryError,
    Worker,
)
from oxcart.engine.batch_handler import BatchHandler
from oxcart.model.errors import JobFailed, ValidationError
from oxcart.testing import drain, inline
from tests.conftest import MakeQueue
from tests.signals import eventually

LIMIT = 20
#: Seconds for a test of several calls on a busy machine.
LONG = 60


class Doc(msgspec.Struct):
    id: int
    text: str = ""


opened: list[str] = []


def index() -> Iterator[str]:
    opened.append("opens")
    yield "index"
    opened.append("closes")


@pytest.fixture(params=["bullmq", "bridge"])
def docs(request: pytest.FixtureRequest, make_queue: MakeQueue) -> Queue:
    opened.clear()
    return make_queue("docs", protocol=request.param)


async def results(jobs: list[Any]) -> list[Any]:
    found = []
    for job in jobs:
        try:
            found.append(await job.result(timeout=LIMIT))
        except JobFailed as error:
            found.append(str(error).partition(": ")[2])
    return found


class TestItems:
    async def test_one_call_answers_every_item(self, docs: Queue) -> None:
        calls: list[int] = []

        @docs.job(batch=10, within="5s")
        async def store(items: list[Doc]) -> list[int]:
            calls.append(len(items))
            return [item.id * 10 for item in items]

        jobs: list[Any] = [await store.enqueue(Doc(number)) for number in range(10)]
        async with Worker(docs, concurrency=10).running():
            assert await results(jobs) == [number * 10 for number in range(10)]
        assert calls == [10]

    async def test_a_batch_that_does_not_fill_up_runs_after_its_wait(self, docs: Queue) -> None:
        calls: list[int] = []

        @docs.job(batch=100, within="50ms")
        async def store(items: list[Any]) -> None:
            calls.append(len(items))

        jobs: list[Any] = [await store.enqueue({"n": number}) for number in range(3)]
        async with Worker(docs, concurrency=200).running():
            assert await results(jobs) == [None] * 3
        assert sum(calls) == 3

    async def test_one_bad_item_fails_alone(self, docs: Queue) -> None:
        @docs.job(batch=4, within="5s", attempts=1)
        async def store(items: list[Doc]) -> list[Any]:
            answers: list[Any] = [
                "fine",
                PermanentError("never"),
                Cancel("not wanted"),
                TemporaryError("later"),
            ]
            return [answers[item.id] for item in items]

        jobs: list[Any] = [await store.enqueue(Doc(number)) for number in range(4)]
        async with Worker(docs, concurrency=4).running():
            assert await results(jobs) == ["fine", "never", "not wanted", "later"]

    async def test_an_item_is_retried_alone(self, docs: Queue) -> None:
        calls: list[list[tuple[int, int]]] = []

        @docs.job(batch=3, within="20ms", backoff="1ms")
        async def store(items: list[Doc], jobs: list[RunningJob]) -> list[Any]:
            calls.append([(item.id, job.attempt) for item, job in zip(items, jobs, strict=True)])
            return [
                TemporaryError("again") if item.id == 1 and job.attempt == 1 else item.id
                for item, job in zip(items, jobs, strict=True)
            ]

        jobs = [await docs.add("store", {"id": number}) for number in range(3)]
        async with Worker(docs, concurrency=3).running():
            assert await results(jobs) == [0, 1, 2]
        flat = sorted(one for call in calls for one in call)
        assert flat == [(0, 1), (1, 1), (1, 2), (2, 1)]

    async def test_a_retry_by_return_value(self, docs: Queue) -> None:
        @docs.job(batch=2, within="20ms")
        async def store(jobs: list[RunningJob]) -> list[Any]:
            return [Retry(after=0) if job.attempt == 1 else job.attempt for job in jobs]

        made = [await docs.add("store", None) for _ in range(2)]
        async with Worker(docs, concurrency=2).running():
            assert await results(made) == [2, 2]

    async def test_an_error_of_the_call_is_that_of_every_item(self, docs: Queue) -> None:
        @docs.job(batch=2, within="5s", attempts=1)
        async def store(items: list[Doc]) -> None:
            raise PermanentError("the index is gone")

        jobs: list[Any] = [await store.enqueue(Doc(number)) for number in range(2)]
        async with Worker(docs, concurrency=2).running():
            assert await results(jobs) == ["the index is gone"] * 2

    @pytest.mark.parametrize("answer", [[1], 5, {"a": 1, "b": 2}])
    async def test_an_answer_that_does_not_fit(self, docs: Queue, answer: Any) -> None:
        @docs.job(batch=2, within="5s")
        async def store(items: list[Doc]) -> Any:
            return answer

        jobs = [await docs.add("store", {"id": number}) for number in range(2)]
        async with Worker(docs, concurrency=2).running():
            assert all("must return one result per item, 2" in one for one in await results(jobs))

    async def test_a_payload_that_does_not_fit_fails_alone(self, docs: Queue) -> None:
        @docs.job(batch=2, within="20ms")
        async def store(items: list[Doc]) -> list[int]:
            return [item.id for item in items]

        with pytest.raises(ValidationError, match="does not fit its handler"):
            await docs.add("store", {"id": "x"})
        bad = await docs.add("store", {"id": 1})
        await bad.update_data({"id": "x"})  # as a peer that does not know the handler would add it
        fine = await store.enqueue(Doc(2))
        async with Worker(docs, concurrency=2).running():
            found = await results([bad, fine])
        assert "does not fit its handler" in found[0]
        assert found[1] == 2


class TestLimits:
    async def test_an_item_whose_time_is_up_leaves_the_others(self, docs: Queue) -> None:
        @docs.job(batch=2, within="5s", attempts=1)
        async def store(items: list[Doc], jobs: list[RunningJob]) -> list[Any]:
            slow = next(job for job, item in zip(jobs, items, strict=True) if item.id == 0)
            assert await slow.cancelled() == "timeout"
            return ["late", "fine"] if items[0].id == 0 else ["fine", "late"]

        jobs = [
            await docs.add("store", {"id": 0}, timeout="100ms"),
            await docs.add("store", {"id": 1}, timeout="60s"),
        ]
        async with Worker(docs, concurrency=2).running():
            first, second = await results(jobs)
        assert "longer than 0.1 s" in first
        assert second == "fine"

    async def test_the_call_ends_with_its_last_item(self, docs: Queue) -> None:
        cancelled = asyncio.Event()

        @docs.job(batch=2, within="5s", attempts=1, timeout="100ms")
        async def store(items: list[Doc]) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise

        jobs: list[Any] = [await store.enqueue(Doc(number)) for number in range(2)]
        async with Worker(docs, concurrency=2).running():
            assert all("longer than 0.1 s" in one for one in await results(jobs))
            await asyncio.wait_for(cancelled.wait(), LIMIT)

    async def test_an_item_cancelled_before_the_call_is_left_out(self, queue: Queue) -> None:
        calls: list[list[int]] = []

        @queue.job(batch=3, within="60s")
        async def store(items: list[Doc]) -> list[int]:
            calls.append([item.id for item in items])
            return [item.id for item in items]

        worker = Worker(queue, concurrency=3)
        async with worker.running():
            first, second = [await store.enqueue(Doc(number)) for number in range(2)]
            await eventually(lambda: len(worker._executor.running) == 2, "both wait in the batch")
            await first.cancel("not wanted")
            await eventually(lambda: len(worker._executor.running) == 1, "one has left")
            more = [await store.enqueue(Doc(number)) for number in (2, 3)]
            assert await results([second, *more]) == [1, 2, 3]
        assert calls == [[1, 2, 3]]

    async def test_an_item_cancelled_during_the_call_ends_alone(self, docs: Queue) -> None:
        begun = asyncio.Event()

        @docs.job(batch=2, within="60s")
        async def store(items: list[Doc], jobs: list[RunningJob]) -> list[int]:
            begun.set()
            await next(job for job, item in zip(jobs, items, strict=True) if item.id == 0).cancelled()
            return [item.id for item in items]

        async with Worker(docs, concurrency=2).running():
            first, second = [await store.enqueue(Doc(number)) for number in range(2)]
            await asyncio.wait_for(begun.wait(), LONG)
            await first.cancel("not wanted")
            assert await second.result(timeout=LONG) == 1
            with pytest.raises(JobFailed, match="not wanted"):
                await first.result(timeout=LONG)
        assert (await first.get()).state == "cancelled"

    async def test_an_item_whose_lease_is_lost_leaves_the_others(
        self, queue: Queue, store: redis.Redis
    ) -> None:
        begun = asyncio.Event()
        causes: list[str] = []

        @queue.job(batch=2, within="60s")
        async def save(items: list[Doc], jobs: list[RunningJob]) -> list[int]:
            begun.set()
            lost = next(job for job, item in zip(jobs, items, strict=True) if item.id == 0)
            causes.append(await lost.cancelled())
            return [item.id for item in items]

        worker = Worker(queue, concurrency=2, lock_duration="30s", renew_every="50ms", recover=False)
        async with worker.running():
            first, second = [await save.enqueue(Doc(number)) for number in range(2)]
            await asyncio.wait_for(begun.wait(), LONG)
            store.set(f"bull:{queue.name}:{first.id}:lock", "another")
            assert await second.result(timeout=LONG) == 1
        assert causes == ["lease lost"]
        assert await first.state() == "active", "the worker with the lease ends it"

    async def test_a_stopped_worker_gives_the_items_back(self, queue: Queue) -> None:
        begun = asyncio.Event()

        @queue.job(batch=2, within="5s")
        async def store(items: list[Doc]) -> list[int]:
            if not begun.is_set():
                begun.set()
                await asyncio.Event().wait()
            return [item.id for item in items]

        jobs: list[Any] = [await store.enqueue(Doc(number)) for number in range(2)]
        async with Worker(queue, concurrency=2, shutdown_timeout=0).running():
            await asyncio.wait_for(begun.wait(), LIMIT)
        assert (await queue.counts())["waiting"] == 2
        async with Worker(queue, concurrency=2).running():
            assert await results(jobs) == [0, 1]

    async def test_no_batch_is_larger_than_the_concurrency(
        self, docs: Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        calls: list[int] = []

        @docs.job(batch=100, within="60s")
        async def store(items: list[Doc]) -> None:
            calls.append(len(items))

        jobs: list[Any] = [await store.enqueue(Doc(number)) for number in range(4)]
        async with Worker(docs, concurrency=2).running():
            await results(jobs)
        assert calls == [2, 2]
        assert any("handler store: batches have at most 2 jobs" in one.getMessage() for one in caplog.records)


class TestKinds:
    async def test_a_plain_function_runs_in_a_thread(self, docs: Queue) -> None:
        @docs.job(batch=2, within="5s")
        def store(
            items: list[Doc], jobs: list[SyncRunningJob], where: Annotated[str, Depends(index)]
        ) -> list[Any]:
            for job, item in zip(jobs, items, strict=True):
                job.update_progress(item.id)
            name = threading.current_thread().name
            return [[item.id, where, name.startswith("oxcart-job")] for item in items]

        jobs = [await docs.add("store", {"id": number}) for number in range(2)]
        async with Worker(docs, concurrency=2).running():
            assert await results(jobs) == [[0, "index", True], [1, "index", True]]
        assert opened == ["opens", "closes"]
        assert [(await job.get()).progress for job in jobs] == [0, 1]

    async def test_dependencies_are_opened_once_per_call(self, docs: Queue) -> None:
        @docs.job(batch=2, within="5s")
        async def store(items: list[Doc], where: Annotated[str, Depends(index)]) -> list[str]:
            return [where] * len(items)

        jobs = [await docs.add("store", {"id": number}) for number in range(2)]
        async with Worker(docs, concurrency=2).running():
            assert await results(jobs) == ["index", "index"]
        assert opened == ["opens", "closes"]

    async def test_inline_and_drain(self, queue: Queue) -> None:
        calls: list[int] = []

        @queue.job(batch=10, within="50ms")
        async def store(items: list[Doc]) -> list[int]:
            calls.append(len(items))
            return [item.id for item in items]

        @queue.job(batch=10)
        def plain(jobs: list[SyncRunningJob]) -> list[str]:
            return [job.name for job in jobs]

        with inline(queue):
            assert await (await store.enqueue(Doc(1))).result() == 1
            assert await (await queue.add("plain")).result() == "plain"
        await queue.add_many([("store", {"id": number}) for number in range(5)])
        assert (await drain(queue)).counts == {"completed": 5}
        assert calls[0] == 1
        assert sum(calls[1:]) == 5


class TestRefusals:
    @pytest.mark.parametrize("batch", [0, 1, 10_001, "5", True, 2.5])
    def test_a_bad_size(self, queue: Queue, batch: Any) -> None:
        with pytest.raises(ValidationError, match="batch must be an integer from 2 to 10000"):
            queue.job(batch=batch)(lambda items: None)

    def test_a_bad_wait(self, queue: Queue) -> None:
        with pytest.raises(ValidationError, match="within"):
            queue.job(batch=2, within="soon")(lambda items: None)

    def test_a_process_or_a_schedule(self, queue: Queue) -> None:
        with pytest.raises(ValidationError, match="run must be 'async' or 'thread' for a batch handler"):
            queue.job(batch=2, run="process")(lambda items: None)
        decorate: Any = queue.job
        with pytest.raises(ValidationError, match="batch must be left out with a schedule"):
            decorate(batch=2, every="1h")(lambda items: None)

    def test_parameters_that_cannot_be_filled(self) -> None:
        async def no_list(item: Doc) -> None: ...

        async def two(items: list[Doc], more: list[int]) -> None: ...

        async def nothing() -> None: ...

        async def wrong_jobs(jobs: list[SyncRunningJob]) -> None: ...

        async def of_job(job: RunningJob) -> None: ...

        async def with_job(items: list[Doc], one: Any = Depends(of_job)) -> None: ...

        for function, text in (
            (no_list, "item must be a list in a batch handler"),
            (two, "more must be a list of jobs"),
            (nothing, "takes a list of payloads or jobs"),
            (wrong_jobs, r"list\[RunningJob\] in this handler"),
            (with_job, "job must be left out of dependencies"),
        ):
            with pytest.raises(ValidationError, match=text):
                BatchHandler("n", function, batch=2)

    async def test_enqueue_takes_one_item(self, queue: Queue) -> None:
        @queue.job(batch=2)
        async def store(items: list[Doc]) -> None: ...

        with pytest.raises(ValidationError, match="one item for the batches of 'store'"):
            await store.enqueue(Doc(1), Doc(2))  # type: ignore[call-arg]
        with pytest.raises(ValidationError, match="does not fit its handler"):
            await store.enqueue([Doc(1)])  # type: ignore[arg-type]
