"""The job in a handler's process: its calls, its context and its logs are those of a thread."""

from __future__ import annotations

import contextlib
import logging
import pickle
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis

from oxcart import Queue, RunningJob, Worker
from oxcart.broker.sealing import Sealer
from oxcart.encryption import KeyRing
from oxcart.engine.executor import Call
from oxcart.engine.handler import Handler
from oxcart.engine.process_child import with_keys, without_keys
from oxcart.model.errors import PayloadError, ValidationError
from oxcart.model.flow import Tree
from oxcart.model.job import Job
from tests.conftest import MakeQueue
from tests.engine import process_handlers as handlers
from tests.engine.making import make_job
from tests.signals import eventually


class TestCalls:
    async def test_the_whole_face_works_over_the_pipe(self, queue: Queue) -> None:
        queue.job(run="process", timeout=60)(handlers.reports)
        job = await queue.add("reports", {"to": "ada"}, attempts=4, tags={"a": "b"}, correlation_id="c-1")
        async with Worker(queue).running():
            assert await job.result(timeout=30) == [
                {"row": 7},
                {"to": "bob"},
                [1, 1, True, False, None],
                True,
                True,
                ["c-1", {"a": "b"}, 4],
            ]
        assert await job.logs() == ["one", "two"]
        stored = await job.get()
        assert (stored.progress, stored.data) == (50, {"to": "bob"})

    async def test_children_are_added_and_read(self, queue: Queue) -> None:
        queue.job(run="process")(handlers.grows)
        queue.job(run="thread")(handlers.double)
        job = await queue.add("grows")
        async with Worker(queue, concurrency=2).running():
            assert await job.result(timeout=30) == [8, 10]

    async def test_steps_sleeps_and_signals_work_over_the_pipe(self, queue: Queue, tmp_path: Path) -> None:
        queue.job(run="process")(handlers.steps)
        job = await queue.add("steps", {"file": str(tmp_path / "effects")}, attempts=1)

        async def waits() -> bool:
            return await queue.jobs.state(job.id) == "delayed" and len((await job.get()).steps) == 4

        async with Worker(queue).running():
            await eventually(waits, "the handler waits for its signal")
            assert await job.signal("go", {"n": 3}) is True
            assert await job.result(timeout=30) == [1, 2, {"n": 3}]
        assert (tmp_path / "effects").read_text() == "1\n2\n"
        assert [step.kind for step in (await job.get()).steps] == ["step", "sleep", "step", "signal"]

    async def test_errors_of_a_call_reach_the_handler(self, queue: Queue) -> None:
        @contextlib.asynccontextmanager
        async def lifespan() -> AsyncIterator[Any]:
            yield threading.Lock()

        queue.job(run="process")(handlers.errs)
        job = await queue.add("errs")
        async with Worker(queue, lifespan=lifespan).running():
            found = await job.result(timeout=30)
        assert [text.partition(":")[0] for text in found] == [
            "ValidationError",
            "ValidationError",
            "PayloadError",
            "PayloadError",
            "ValidationError",
        ]
        assert "cannot copy lock" in found[-1]

    async def test_threads_of_the_handler_may_call_at_once(self, queue: Queue) -> None:
        queue.job(run="process")(handlers.calls_at_once)
        job = await queue.add("calls_at_once")
        async with Worker(queue).running():
            assert await job.result(timeout=30) == 10
        assert sorted(await job.logs()) == sorted(map(str, range(10)))

    async def test_a_job_that_has_ended_is_refused(self, queue: Queue) -> None:
        queue.job(run="process")(handlers.keeps)
        queue.job(run="process")(handlers.uses_the_kept)
        async with Worker(queue).running():
            kept = await queue.add("keeps")
            await kept.result(timeout=30)
            late = await queue.add("uses_the_kept")
            assert await late.result(timeout=30) == "HandlerStopped: the attempt of this job has ended"
        assert await kept.logs() == []

    async def test_a_lost_lease_reaches_the_handler(
        self, queue: Queue, store: redis.Redis, tmp_path: Path
    ) -> None:
        queue.job(run="process")(handlers.waits)
        job = await queue.add("waits", {"file": str(tmp_path / "pid")})
        ended: list[Any] = []

        async def note(running: RunningJob, call_next: Call) -> Any:
            ended.append(await call_next(running))
            return ended[-1]

        worker = Worker(queue, lock_duration="300ms", renew_every="50ms", middleware=[note], recover=False)
        async with worker.running():
            await eventually((tmp_path / "pid").exists, "the handler runs")
            store.set(f"bull:q:{job.id}:lock", "another")
            await eventually(lambda: bool(ended), "the handler ends")
        assert ended == [["lease lost", True, "lease lost"]]

    async def test_a_process_that_dies_during_its_calls_ends_its_attempt_alone(self, queue: Queue) -> None:
        queue.job(run="process")(handlers.logs_and_dies)
        queue.job(run="process")(handlers.double)
        async with Worker(queue, concurrency=2).running():
            dying = await queue.add("logs_and_dies", attempts=1)
            with pytest.raises(Exception, match="signal SIGKILL"):
                await dying.result(timeout=30)
            fine = await queue.add("double", {"number": 1})
            assert await fine.result(timeout=30) == 2


class TestContext:
    async def test_variables_of_middleware_and_state_reach_the_handler(
        self, queue: Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        @contextlib.asynccontextmanager
        async def lifespan() -> AsyncIterator[dict[str, str]]:
            yield {"region": "eu"}

        async def layer(job: RunningJob, call_next: Call) -> Any:
            if job.data:
                handlers.tenant.set(job.data["tenant"])
                handlers.secret.set(threading.Lock())  # pickle refuses it
                handlers.Nested.hidden.set("set")
            return await call_next(job)

        queue.job(run="process")(handlers.context)
        with caplog.at_level("INFO"):
            async with Worker(queue, lifespan=lifespan, middleware=[layer]).running():
                first = await queue.add("context", {"tenant": "acme"})
                assert await first.result(timeout=30) == ["acme", None, "unset", {"region": "eu"}]
                second = await queue.add("context")
                assert await second.result(timeout=30) == ["nobody", None, "unset", {"region": "eu"}]
                third = await queue.add("context", {"tenant": "acme"})
                await third.result(timeout=30)
        left = [one.getMessage() for one in caplog.records if "does not reach" in one.getMessage()]
        assert sorted(text.partition(":")[0] for text in left) == [
            "context variable 'hidden' does not reach handler processes",
            "context variable 'secret' does not reach handler processes",
        ]

    async def test_log_handlers_of_the_worker_see_the_context_of_the_job(self, queue: Queue) -> None:
        seen: list[tuple[str, str, Any]] = []

        class Keeper(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                fields = vars(record)
                seen.append((record.getMessage(), handlers.tenant.get(), fields.get("job_id")))

        async def layer(job: RunningJob, call_next: Call) -> Any:
            handlers.tenant.set("acme")
            return await call_next(job)

        keeper, kitchen = Keeper(), logging.getLogger("kitchen")
        kitchen.addHandler(keeper)
        kitchen.setLevel(logging.INFO)
        try:
            queue.job(run="process")(handlers.context)
            async with Worker(queue, middleware=[layer]).running():
                job = await queue.add("context")
                await job.result(timeout=30)
        finally:
            kitchen.removeHandler(keeper)
            kitchen.setLevel(logging.NOTSET)
        assert seen == [("looked", "acme", job.id)]

    async def test_levels_of_single_loggers_hold_there(
        self, queue: Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue.job(run="process")(handlers.whispers)
        low = logging.getLogger("kitchen.low")
        async with Worker(queue).running():
            for level in (logging.DEBUG, logging.NOTSET):
                low.setLevel(level)
                job = await queue.add("whispers")
                await job.result(timeout=30)
        messages = [one.getMessage() for one in caplog.records]
        assert messages.count("psst") == 1
        assert "not wanted" not in messages


class TestRegistration:
    def test_a_snapshot_is_refused_as_the_job(self) -> None:
        def report(job: Job) -> None: ...

        with pytest.raises(ValidationError, match="job must be SyncRunningJob for a function in a process"):
            Handler("report", report, run="process")

    def test_the_async_job_is_refused(self) -> None:
        def report(job: RunningJob) -> None: ...

        with pytest.raises(ValidationError, match="job must be SyncRunningJob"):
            Handler("report", report, run="process")


class TestSealed:
    async def test_a_sealed_queue(self, make_queue: MakeQueue) -> None:
        sealed = make_queue("q", key_ring=KeyRing({"a": KeyRing.generate()}))
        sealed.job(run="process")(handlers.reports)
        job = await sealed.add("reports", {"to": "ada"})
        async with Worker(sealed).running():
            found = await job.result(timeout=30)
        assert found[:2] == [{"row": 7}, {"to": "bob"}]

    def test_trees_travel_without_their_keys(self) -> None:
        ring = KeyRing({"a": KeyRing.generate()})
        sealer = Sealer(ring, "bullmq", "bull", "q")
        job = make_job()
        job._broker.sealer = sealer  # type: ignore[misc]
        tree = Tree("other", "bull", "n", children=(Tree("q", "bull", "leaf", sealer=sealer),), sealer=sealer)
        sent = pickle.loads(pickle.dumps([without_keys(tree), without_keys(Tree("open", "bull", "n"))]))
        back, plain = with_keys(sent, job)
        assert (back.sealer.ring, back.sealer.queue, back.children[0].sealer.queue) == (ring, "other", "q")
        assert plain.sealer is None
        job._broker.sealer = Sealer(KeyRing({"a": KeyRing.generate()}), "bullmq", "bull", "q")  # type: ignore[misc]
        with pytest.raises(PayloadError, match="key_ring must be that of queue q"):
            with_keys(sent, job)
