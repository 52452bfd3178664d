"""A job in a plain function: the face of an async handler's job without ``await``."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from types import MemberDescriptorType
from typing import Any

import pytest
import redis

from oxcart import Queue, RunningJob, SyncRunningJob, Worker, current_job
from oxcart.engine.handler import Handler
from oxcart.engine.sync_running import HandlerStopped, ThreadLink
from oxcart.model.errors import ValidationError
from oxcart.model.failure import TemporaryError
from oxcart.model.outcome import WaitForChildren
from tests.engine.making import NOW, NoBroker, make_job
from tests.signals import eventually

#: Members of `RunningJob` that belong to the worker, not to handlers.
OF_THE_WORKER = {
    "began",
    "begin_step",
    "broker_steps",
    "call_plain",
    "cancel",
    "cancel_text",
    "claim",
    "end_step",
    "facts",
    "fault",
    "handler",
    "limit_is_life",
    "on_cancel",
    "on_log",
    "add_trees",
    "run_steps",
    "sealer",
    "set_data",
    "set_opened",
    "shorten",
    "span",
    "skips_waits",
    "station",
    "stop",
    "suspend",
    "suspension",
    "took",
    "waited_ms",
}
#: A thread cannot put a limit of its own around a wait.
OF_THREADS = {"wait_cancelled"}
#: Members whose docstrings begin alike, and say more about threads or about async functions.
LONGER = {"is_cancelled", "step"}


def public(kind: type) -> set[str]:
    slots = {name for base in kind.__mro__ for name in getattr(base, "__slots__", ())}
    return {name for name in {*dir(kind), *slots} if not name.startswith("_")}


class TestFaces:
    def test_both_faces_have_the_same_members(self) -> None:
        assert public(SyncRunningJob) - OF_THREADS == public(RunningJob) - OF_THE_WORKER

    def test_both_faces_have_the_same_signatures(self) -> None:
        for name in sorted(public(RunningJob) - OF_THE_WORKER):
            theirs, ours = (inspect.getattr_static(kind, name) for kind in (RunningJob, SyncRunningJob))
            if isinstance(theirs, property):
                assert _returns(theirs.fget) == _returns(ours.fget), name
            elif name == "step":  # the async one takes async functions as well
                assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)
            elif callable(theirs):
                assert inspect.signature(ours) == inspect.signature(theirs), name
                assert not inspect.iscoroutinefunction(ours), name

    @pytest.mark.parametrize("name", sorted(public(RunningJob) - OF_THE_WORKER))
    def test_both_faces_have_the_same_docstrings(self, name: str) -> None:
        theirs, ours = (
            (inspect.getdoc(inspect.getattr_static(kind, name)) or "").replace("await ", "").split()
            for kind in (RunningJob, SyncRunningJob)
        )
        if isinstance(inspect.getattr_static(RunningJob, name), MemberDescriptorType):
            assert ours, "an attribute has no docstring of its own"
        elif name in LONGER:
            assert " ".join(ours).startswith(" ".join(theirs[:20]))
        else:
            assert ours == theirs

    async def test_the_type_checker_tells_them_apart(self, queue: Queue) -> None:
        """Every ``type: ignore`` here is an error of mypy, which also reports one that is not needed."""

        async def forgets(job: RunningJob) -> None:
            job.log("lost")  # type: ignore[unused-coroutine]

        @queue.job(attempts=1)
        def plain(job: SyncRunningJob, to: str) -> int:
            job.log("kept")
            return len(to)

        await plain.enqueue(to="ada")
        with pytest.raises(ValidationError):
            await plain.enqueue(5)  # type: ignore[arg-type]
        assert inspect.iscoroutinefunction(forgets)

    def test_every_member_is_documented(self) -> None:
        for name in public(SyncRunningJob):
            assert inspect.getdoc(inspect.getattr_static(SyncRunningJob, name)), name


def _returns(getter: Any) -> Any:
    return getter.__annotations__["return"]


class TestThread:
    async def test_calls_of_a_plain_handler_are_stored(self, queue: Queue) -> None:
        @queue.job
        def report(job: SyncRunningJob) -> str:
            job.log("one", "two")
            job.update_progress(50)
            job.checkpoint({"row": 7})
            job.update_data({"to": "bob"})
            return f"{job.attempt} {job.checkpointed} {job.data}"

        job = await report.enqueue()
        async with Worker(queue).running():
            assert await job.result(timeout=20) == "1 {'row': 7} {'to': 'bob'}"
        assert await job.logs() == ["one", "two"]
        assert (await job.get()).progress == 50

    async def test_a_handler_without_annotations_gets_the_face_too(self, queue: Queue) -> None:
        @queue.job
        def report(job):  # type: ignore[no-untyped-def]
            return type(job).__name__, job.log("a line")

        job: Any = await report.enqueue()
        async with Worker(queue).running():
            assert await job.result(timeout=20) == ["SyncRunningJob", None]
        assert await job.logs() == ["a line"]

    async def test_children_are_added_and_read(self, queue: Queue) -> None:
        @queue.job
        def page(number: int) -> int:
            return number * 10

        @queue.job
        def book(job: SyncRunningJob) -> Any:
            if not job.dependency_counts().total:
                added = job.add_children(page.flow(number=1), page.flow(number=2))
                assert [one.name for one in added] == ["page", "page"]
                return WaitForChildren()
            assert len(job.dependencies("processed").children) == 2
            assert job.ignored_failures() == {}
            return sorted(job.children_values().values())

        job = await book.enqueue()
        async with Worker(queue, concurrency=3).running():
            assert await job.result(timeout=20) == [10, 20]

    async def test_a_checkpoint_reaches_the_next_attempt(self, queue: Queue) -> None:
        @queue.job(attempts=2, backoff="1ms")
        def climb(job: SyncRunningJob) -> Any:
            if job.checkpointed is None:
                job.checkpoint({"step": 1})
                raise TemporaryError("slipped")
            return job.checkpointed, job.attempt, job.fencing, job.previous_attempt_id is not None

        job: Any = await climb.enqueue()
        async with Worker(queue).running():
            assert await job.result(timeout=20) == [{"step": 1}, 2, 2, True]

    async def test_errors_of_a_call_reach_the_handler(self, queue: Queue, store: redis.Redis) -> None:
        refused: list[BaseException] = []

        @queue.job(attempts=1)
        def report(job: SyncRunningJob) -> str:
            calls: list[Callable[[], Any]] = [
                lambda: job.update_progress(101),
                lambda: job.limit_to("soon"),
                lambda: job.dependencies("processed", limit=0),
                lambda: job.checkpoint({"nan": float("nan")}),
            ]
            for call in calls:
                with pytest.raises(ValidationError) as caught:
                    call()
                refused.append(caught.value)
            store.set(f"bull:q:{job.id}:lock", "another")
            with pytest.raises(Exception, match="lease") as caught_lost:
                job.checkpoint({"row": 1})
            refused.append(caught_lost.value)
            store.set(f"bull:q:{job.id}:lock", job.token)
            return "survived"

        job = await report.enqueue()
        async with Worker(queue).running():
            assert await job.result(timeout=20) == "survived"
        assert [type(one).__name__ for one in refused] == [
            *["ValidationError"] * 3,
            "PayloadError",
            "LeaseLost",
        ]

    async def test_the_handler_reads_its_deadline_and_shortens_it(self, queue: Queue) -> None:
        deadlines: list[float | None] = []

        @queue.job(timeout=60, attempts=1)
        def slow(job: SyncRunningJob) -> None:
            deadlines.append(job.deadline)
            job.limit_to("50ms")
            deadlines.append(job.deadline)
            assert job.cancelled() == "timeout"
            job.raise_if_cancelled()

        job = await slow.enqueue()
        async with Worker(queue).running():
            with pytest.raises(Exception, match="the attempt took longer"):
                await job.result(timeout=20)
        before, after = deadlines
        assert before is not None
        assert after is not None
        assert after < before <= time.monotonic() + 60

    async def test_a_thread_sees_its_cancellation(self, queue: Queue) -> None:
        began = asyncio.Event()
        loop = asyncio.get_running_loop()

        @queue.job
        def wait(job: SyncRunningJob) -> None:
            assert not job.wait_cancelled(0)
            assert not job.is_cancelled
            loop.call_soon_threadsafe(began.set)
            assert job.wait_cancelled(20)
            assert (job.is_cancelled, job.cancel_reason) == (True, "cancelled")
            job.raise_if_cancelled()

        job = await wait.enqueue()
        async with Worker(queue).running():
            await asyncio.wait_for(began.wait(), 20)
            await job.cancel("not needed")
            await eventually_state(job, "failed")
        assert (await job.get()).failed_reason == "not needed"

    async def test_current_job_and_the_jobs_it_adds(self, queue: Queue) -> None:
        @queue.job
        def look(job: SyncRunningJob) -> Any:
            assert current_job() is job
            return job.correlation_id, job.snapshot().id == job.id, job.server_ms() > 0

        job: Any = await look.using(correlation_id="c-1").enqueue()
        async with Worker(queue).running():
            assert await job.result(timeout=20) == ["c-1", True, True]


async def eventually_state(job: Any, wanted: str) -> None:
    async with asyncio.timeout(20):
        while await job.state() != wanted:
            await asyncio.sleep(0.01)


class TestRefusals:
    def test_a_plain_function_cannot_ask_for_the_async_job(self) -> None:
        def report(job: RunningJob) -> None: ...

        with pytest.raises(ValidationError, match="handler report: job must be SyncRunningJob") as caught:
            Handler("report", report)
        assert (caught.value.field, caught.value.value) == ("job", "RunningJob")

    def test_an_async_function_cannot_ask_for_the_sync_job(self) -> None:
        async def report(running: SyncRunningJob) -> None: ...

        with pytest.raises(ValidationError, match="running must be RunningJob for an async function"):
            Handler("report", report)

    def test_the_parameter_job_cannot_be_anything_else(self) -> None:
        def number(job: int) -> None: ...

        async def text(job: str) -> None: ...

        for function in (number, text):
            with pytest.raises(ValidationError, match="job must be"):
                Handler("n", function)

    @pytest.mark.parametrize("kind", ["SyncRunningJob | None", "Any", "object", "'SyncRunningJob'"])
    def test_wider_annotations_are_met(self, kind: str) -> None:
        def wide(job: Any) -> None: ...

        wide.__annotations__["job"] = kind
        assert Handler("n", wide).takes_job == "job"

    def test_a_function_that_the_checker_alone_can_read(self) -> None:
        def odd(job: Missing, to: str) -> None: ...  # type: ignore[name-defined]  # noqa: F821

        assert Handler("n", odd).takes_job == "job"


class TestLink:
    async def test_the_loop_does_not_wait_for_itself(self) -> None:
        job = make_job()
        face = SyncRunningJob(job, ThreadLink(job, asyncio.get_running_loop()))
        with pytest.raises(RuntimeError, match="event loop"):
            face.log("x")

    def test_a_worker_that_has_ended(self) -> None:
        loop = asyncio.new_event_loop()
        job = make_job()
        link = ThreadLink(job, loop)
        link._loop_thread = 0
        loop.close()
        with pytest.raises(HandlerStopped, match="the worker has ended"):
            SyncRunningJob(job, link).log("x")

    def test_a_worker_that_ends_during_a_call(self) -> None:
        loop = asyncio.new_event_loop()

        class Silent(NoBroker):
            async def append(self, *_: Any) -> int:
                loop.stop()
                await asyncio.Event().wait()
                return 0

        job = make_job(broker=Silent())
        link = ThreadLink(job, loop)
        failed: list[BaseException] = []

        def ask() -> None:
            try:
                SyncRunningJob(job, link).log("x")
            except HandlerStopped as error:
                failed.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        loop.run_forever()  # until the broker stops it in the middle of the call
        loop.close()
        thread.join(20)
        assert "during job.log()" in str(failed[0])

    def test_what_it_shows(self) -> None:
        job = make_job({"x": 1}, name="greet", starts=2)
        face = SyncRunningJob(job, ThreadLink(job, asyncio.new_event_loop()))
        assert repr(face) == "SyncRunningJob(q/1 'greet', attempt 1)"
        assert (face.raw_data, face.started_ms, face.tags) == (b'{"x": 1}', NOW, {})
        assert face.log_fields()["job_id"] == "1"


async def test_a_cancellation_before_the_face_is_made() -> None:
    job = make_job()
    job.cancel("timeout")
    face = SyncRunningJob(job, ThreadLink(job, asyncio.get_running_loop()))
    assert face.wait_cancelled(0)
    assert face.cancelled() == "timeout"
    await eventually(lambda: face.is_cancelled, "cancelled")
