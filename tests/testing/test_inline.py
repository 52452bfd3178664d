"""Inline mode behaves like a worker, or its documentation names the difference."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from typing import Any

import pytest
import redis

from oxcart import (
    Cancel,
    PermanentError,
    Queue,
    Retry,
    RunningJob,
    Snooze,
    SyncRunningJob,
    TemporaryError,
    Worker,
    current_job,
    sync,
)
from oxcart.engine.executor import Call
from oxcart.model.errors import (
    JobFailed,
    JobNotFound,
    NotSupported,
    OxcartError,
    ResultTimeout,
    ValidationError,
    WrongState,
)
from oxcart.testing import (
    EndlessJobs,
    assert_enqueued,
    drain,
    enqueued,
    inline,
    manual,
    refute_enqueued,
)
from tests.testing.conftest import NOWHERE


class TestInline:
    async def test_runs_at_once_without_a_server(self, emails: Queue) -> None:
        @emails.job
        async def welcome(to: str, name: str) -> dict[str, str]:
            return {"sent": f"{name} <{to}>"}

        with inline(emails) as report:
            job = await welcome.enqueue(to="ada@example.com", name="Ada")
            assert await job.result() == {"sent": "Ada <ada@example.com>"}
            assert await job.state() == "completed"
            now = await job.get()
        assert (now.attempts_made, now.worker_id, now.failed_reason) == (1, "inline", None)
        assert report.counts == {"completed": 1}
        assert report.completed[0].value == {"sent": "Ada <ada@example.com>"}

    async def test_add_and_add_many(self, emails: Queue) -> None:
        ran: list[Any] = []
        emails.fallback(lambda job: ran.append((job.name, job.data)))
        with inline(emails):
            await emails.add("one", [1])
            await emails.add_many([("two", 2), ("three", 3, {"delay": "1h"})])
            assert (await emails.counts())["completed"] == 3
            assert [job.name for job in await emails.jobs.list("completed")] == ["three", "two", "one"]
        assert ran == [("one", [1]), ("two", 2), ("three", 3)]

    async def test_retries_by_the_jobs_policy_without_waiting(self, emails: Queue) -> None:
        attempts: list[int] = []

        @emails.job(attempts=4, backoff={"type": "exponential", "delay": 60_000})
        async def flaky(job: RunningJob) -> int:
            attempts.append(job.attempt)
            if job.attempt < 3:
                raise TemporaryError("not yet")
            return job.fencing

        with inline(emails) as report:
            assert await (await flaky.enqueue()).result() == 3
        assert attempts == [1, 2, 3]
        assert [(one.end, one.delay_ms, one.reason) for one in report.attempts] == [
            ("retried", 60_000, "not yet"),
            ("retried", 120_000, "not yet"),
            ("completed", 0, None),
        ]

    async def test_a_failure_for_good(self, emails: Queue) -> None:
        @emails.job(attempts=2)
        async def broken() -> None:
            raise KeyError("x")

        with inline(emails) as report:
            job = await broken.enqueue()
            with pytest.raises(JobFailed, match="'x'") as caught:
                await job.result()
            assert await job.state() == "failed"
            now = await job.get()
        assert caught.value.category == "temporary"
        assert isinstance(caught.value.__cause__, KeyError)
        assert len(now.stacktrace) == 2
        assert "KeyError" in now.stacktrace[0]
        assert report.counts == {"retried": 1, "failed": 1}
        with pytest.raises(JobFailed, match="broken: KeyError: 'x'"):
            report.raise_failures()

    async def test_propagate_raises_where_the_job_was_added(self, emails: Queue) -> None:
        @emails.job
        async def broken() -> None:
            raise PermanentError("never")

        with inline(emails, propagate=True), pytest.raises(PermanentError, match="never"):
            await broken.enqueue()

    async def test_control_values(self, emails: Queue) -> None:
        answers: list[Any] = [Snooze("1h"), Retry(after="5m", reason="busy"), Cancel("not wanted")]

        @emails.job
        async def steered() -> Any:
            return answers.pop(0)

        with inline(emails) as report:
            job = await steered.enqueue()
            with pytest.raises(JobFailed, match="not wanted") as caught:
                await job.result()
        assert caught.value.category == "cancelled"
        assert [(one.end, one.attempt, one.delay_ms) for one in report.attempts] == [
            ("snoozed", 1, 3_600_000),
            ("retried", 1, 300_000),
            ("cancelled", 2, 0),
        ]

    async def test_a_job_that_snoozes_for_ever(self, emails: Queue) -> None:
        @emails.job
        async def sleepy() -> Snooze:
            return Snooze("1s")

        with inline(emails), pytest.raises(EndlessJobs, match="snoozed 101 times"):
            await sleepy.enqueue()

    async def test_jobs_that_enqueue_themselves_for_ever(self, emails: Queue) -> None:
        @emails.job(attempts=1)
        async def again() -> None:
            await again.enqueue()

        with inline(emails, propagate=True), pytest.raises(EndlessJobs, match="50 deep"):
            await again.enqueue()

    async def test_nested_jobs_over_two_queues(self, emails: Queue) -> None:
        other = Queue("other", url=NOWHERE)

        @other.job
        async def child(number: int) -> int:
            return number * 2

        @emails.job
        async def parent(number: int) -> int:
            return await (await child.enqueue(number)).result(timeout=1) + 1

        with inline(emails, other) as report:
            assert await (await parent.enqueue(20)).result() == 41
        assert [one.name for one in report.attempts] == ["child", "parent"]

    async def test_a_timeout_of_an_async_handler(self, emails: Queue) -> None:
        @emails.job(timeout="10ms", attempts=1)
        async def slow() -> None:
            await asyncio.Event().wait()

        with inline(emails):
            job = await slow.enqueue()
            with pytest.raises(JobFailed, match=r"longer than 0\.01 s") as caught:
                await job.result()
        assert caught.value.category == "timeout"

    async def test_middleware_state_and_context(self, emails: Queue) -> None:
        seen: list[Any] = []

        async def layer(job: RunningJob, call_next: Call) -> Any:
            seen.append(("before", current_job() is job))
            result = await call_next(job)
            seen.append(("after", result))
            return result

        @emails.job
        async def look(job: RunningJob) -> str:
            assert current_job() is job
            return str(job.state["pool"])

        with inline(emails, middleware=[layer], state={"pool": "open"}):
            assert await (await look.enqueue()).result() == "open"
        assert seen == [("before", True), ("after", "open")]
        assert current_job() is None

    async def test_plain_functions_run_in_the_tests_thread_and_context(self, emails: Queue) -> None:
        transaction: contextvars.ContextVar[str] = contextvars.ContextVar("transaction")
        transaction.set("mine")

        @emails.job
        def plain(job: SyncRunningJob) -> list[Any]:
            assert current_job() is job
            job.log("one", "two")
            job.update_progress(50)
            seen = transaction.get()
            transaction.set("changed")
            return [threading.current_thread().name, seen]

        with inline(emails):
            job = await plain.enqueue()
            assert await job.result() == [threading.current_thread().name, "mine"]
            assert await job.logs() == ["one", "two"]
            assert (await job.get()).progress == 50
        assert transaction.get() == "mine"

    async def test_process_handlers_run_here_with_the_same_job(self, emails: Queue) -> None:
        def crunch(number: int, job: SyncRunningJob) -> list[int]:
            job.log("a line")
            assert current_job() is job
            return [os.getpid(), number, job.attempt]

        emails.job(run="process")(crunch)
        with inline(emails):
            job = await emails.add("crunch", {"number": 3})
            assert await job.result() == [os.getpid(), 3, 1]
            assert await job.logs() == ["a line"]

    async def test_checks_input_as_a_server_would(self, emails: Queue) -> None:
        with inline(emails):
            with pytest.raises(ValidationError, match="attempts must be at least 1"):
                await emails.add("n", attempts=0)
            with pytest.raises(ValidationError, match="finite"):
                await emails.add("n", float("nan"))

    async def test_results_go_through_json(self, emails: Queue) -> None:
        @emails.job
        async def pair() -> Any:
            return (1, b"\x00")

        @emails.job(attempts=1)
        async def odd() -> Any:
            return object()

        with inline(emails):
            assert await (await pair.enqueue()).result() == [1, b"\x00"]
            with pytest.raises(JobFailed, match="return value must be something JSON can hold"):
                await (await odd.enqueue()).result()

    async def test_a_bad_payload_is_permanent(self, emails: Queue) -> None:
        @emails.job
        async def welcome(to: str) -> None: ...

        with inline(emails) as report:
            with pytest.raises(ValidationError, match="does not fit its handler"):
                await emails.add("welcome", {"to": 5})
            await emails.pause()
            job = await emails.add("welcome", {"to": "ada"})
            await job.update_data({"to": 5})  # as a peer that does not know the handler would add it
            await emails.resume()
            with pytest.raises(JobFailed, match="does not fit its handler"):
                await job.result()
        assert report.failed[0].category == "permanent"

    async def test_a_name_without_a_handler_stays(self, emails: Queue) -> None:
        with inline(emails):
            job = await emails.add("unknown")
            assert await job.state() == "delayed"
            with pytest.raises(ResultTimeout, match="no handler for 'unknown'"):
                await job.result(timeout=60)

    async def test_removed_on_completion(self, emails: Queue) -> None:
        @emails.job(remove_on_complete=True)
        async def brief() -> int:
            return 7

        with inline(emails):
            job = await brief.enqueue()
            assert await job.state() == "unknown"
            assert await job.result() == 7
            with pytest.raises(JobNotFound):
                await job.get()
            with pytest.raises(JobNotFound):
                await emails.jobs.handle("none").result()

    async def test_a_custom_id_is_added_once(self, emails: Queue) -> None:
        ran: list[int] = []
        emails.fallback(lambda: ran.append(1))
        with inline(emails):
            first, second = await emails.add("n", job_id="a"), await emails.add("n", job_id="a")
        assert (first.created, second.created, len(ran)) == (True, False, 1)

    async def test_pause_retry_remove_and_change(self, emails: Queue) -> None:
        ran: list[int] = []
        emails.fallback(lambda: ran.append(1))
        with inline(emails):
            await emails.pause()
            job = await emails.add("n", {"x": 1}, delay=60)
            assert (await emails.is_paused(), ran, await job.state()) == (True, [], "delayed")
            await job.change_delay(5)
            await job.update_data({"x": 2})
            await job.promote()
            assert await job.state() == "waiting"
            await job.change_priority(3)
            assert await job.state() == "prioritized"
            with pytest.raises(WrongState):
                await job.change_delay(5)
            with pytest.raises(WrongState):
                await job.retry()
            await emails.resume()
            assert (len(ran), await job.state(), (await job.get()).data) == (1, "completed", {"x": 2})
            await job.retry(reset=True)
            assert (len(ran), (await job.get()).attempts_made) == (2, 1)
            await job.remove()
            with pytest.raises(JobNotFound):
                await job.remove()

    async def test_needs_no_worker_and_no_events(self, emails: Queue) -> None:
        with inline(emails):
            with pytest.raises(OxcartError, match="has no server"):
                emails.events()
            with pytest.raises(OxcartError, match="has no server"):
                await Worker(emails).run()

    async def test_the_refusal_of_dependencies_names_the_argument(self, emails: Queue) -> None:
        with manual(emails):
            first = await emails.add("first")
            with pytest.raises(NotSupported, match=r"after= among .* needs a server"):
                await emails.add("second", after=[first])

    async def test_the_queue_is_itself_again_afterwards(self, queue: Queue, store: redis.Redis) -> None:
        queue.fallback(lambda: None)
        with inline(queue):
            with manual(queue):
                await queue.add("kept")
                assert (await queue.counts())["waiting"] == 1
            await queue.add("run")
            assert (await queue.counts())["completed"] == 1
        assert store.dbsize() == 0
        await queue.add("real")
        assert store.llen("bull:q:wait") == 1

    async def test_the_end_of_the_test_ends_the_job(self, emails: Queue) -> None:
        started, cleaned = asyncio.Event(), asyncio.Event()

        @emails.job
        async def long() -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                cleaned.set()

        with inline(emails):
            adding = asyncio.create_task(long.enqueue())
            await started.wait()
            adding.cancel()
            with pytest.raises(asyncio.CancelledError):
                await adding
        assert cleaned.is_set()

    async def test_a_partitioned_queue_uses_no_server(self) -> None:
        queue = Queue("q", url=NOWHERE, partitions=4, add_timeout=0.01)
        queue.fallback(lambda: 5)
        with inline(queue):
            assert await (await queue.add("n", partition_key="tenant")).result() == 5
            assert not queue.capabilities.can("partitions")
        assert queue.capabilities.can("partitions")

    @pytest.mark.parametrize("mode", [inline, manual])
    def test_refuses_a_queue_behind_an_http_api(self, mode: Any) -> None:
        queue = Queue("q", url="http://127.0.0.1:1")
        with pytest.raises(ValidationError, match="without the URL of an HTTP API"), mode(queue):
            pass

    def test_needs_a_queue(self) -> None:
        with pytest.raises(ValidationError, match="at least one queue"), inline():
            pass


class TestInlineSync:
    def test_runs_at_once_in_this_thread(self, letters: sync.Queue) -> None:
        @letters.job
        def send(to: str) -> list[str]:
            return [to, threading.current_thread().name]

        @letters.job
        async def later(to: str) -> str:
            await asyncio.sleep(0)
            return to

        with inline(letters) as report:
            assert send.enqueue(to="ada").result() == ["ada", threading.current_thread().name]
            assert later.enqueue("bob").result() == "bob"
            assert letters.counts()["completed"] == 2
        assert report.counts == {"completed": 2}

    def test_nested_in_the_same_thread(self, letters: sync.Queue) -> None:
        transaction: contextvars.ContextVar[str] = contextvars.ContextVar("transaction")
        transaction.set("open")
        seen: list[Any] = []

        @letters.job
        def child() -> None:
            seen.append((threading.current_thread(), transaction.get()))

        @letters.job
        def parent() -> None:
            child.enqueue()
            seen.append("parent")

        with inline(letters):
            parent.enqueue()
        assert seen == [(threading.current_thread(), "open"), "parent"]

    async def test_in_a_test_with_a_loop(self, letters: sync.Queue) -> None:
        @letters.job
        async def later() -> int:
            await asyncio.sleep(0)
            return 1

        with inline(letters):
            assert later.enqueue().result() == 1

    def test_manual_and_assertions(self, letters: sync.Queue) -> None:
        letters.fallback(lambda: None)
        with manual(letters):
            letters.add("post", {"to": "ada"})
            assert len(assert_enqueued(letters, "post", {"to": "ada"})) == 1
            refute_enqueued(letters, "post", {"to": "bob"})
            assert [job.name for job in enqueued(letters)] == ["post"]
            assert drain(letters).counts == {"completed": 1}
            assert enqueued(letters) == []
