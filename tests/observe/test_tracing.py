"""Traces: every moment of a job is a span, and all spans of one undertaking are one trace."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
import redis
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from oxcart import (
    Flow,
    Graph,
    PermanentError,
    RunningJob,
    Snooze,
    SyncRunningJob,
    WaitForChildren,
    Worker,
)
from oxcart.errors import ValidationError
from oxcart.webhooks import Webhooks
from tests.conftest import MakeQueue
from tests.engine.test_webhooks import HERE, SECRET, Receiver
from tests.engine.test_webhooks import receiver as receiver
from tests.observe.process_handlers import span_here, spans_of_process
from tests.observe.spans import (
    Spans,
    carried,
    facts,
    header_of,
    id_of,
    linked,
    nothing,
    parent_of,
    ran,
    trace_of,
)
from tests.signals import eventually


@pytest.fixture
def spans() -> Spans:
    return Spans()


class TestOneJob:
    async def test_add_wait_claim_and_run_are_spans_of_one_trace(
        self, make_queue: MakeQueue, spans: Spans
    ) -> None:
        queue = make_queue(tracing=spans.tracing)
        queue.job(name="work")(nothing)
        job = await queue.add("work", {}, correlation_id="order-7")
        worker = Worker(queue)
        async with worker.running():
            await job.result(timeout=30)

        assert spans.names == ["add q", "claim q", "process q", "wait q"]
        add, wait, run = spans.one("add q"), spans.one("wait q"), spans.one("process q")
        assert {trace_of(add), trace_of(wait), trace_of(run)} == {trace_of(add)}
        assert (parent_of(add), parent_of(wait), parent_of(run)) == (None, id_of(add), id_of(add))
        assert (add.kind, run.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
        assert facts(add) == {
            "messaging.system": "bullmq",
            "messaging.destination.name": "q",
            "messaging.operation.name": "add",
            "messaging.operation.type": "send",
            "messaging.message.id": job.id,
            "oxcart.job.name": "work",
        }
        assert wait.start_time is not None
        assert wait.end_time is not None
        assert facts(run) == {
            "messaging.system": "bullmq",
            "messaging.destination.name": "q",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.message.id": job.id,
            "messaging.message.conversation_id": "order-7",
            "messaging.client.id": worker.id,
            "oxcart.job.name": "work",
            "oxcart.job.attempt": 1,
            "oxcart.job.wait": (wait.end_time - wait.start_time) / 1e9,
            "oxcart.job.outcome": "completed",
        }
        assert run.status.status_code is StatusCode.UNSET

    async def test_wait_lasts_from_ready_to_start(self, make_queue: MakeQueue, spans: Spans) -> None:
        queue = make_queue(tracing=spans.tracing)
        queue.job(name="work")(nothing)
        job = await queue.add("work", delay=0.05)
        await ran(queue, job)
        stored = await job.get()
        wait = spans.one("wait q")
        assert stored is not None
        assert stored.processed_on is not None
        assert wait.start_time == (stored.timestamp + 50) * 1_000_000
        assert wait.end_time == stored.processed_on * 1_000_000

    async def test_wait_is_an_attribute_of_the_attempt_where_its_span_is_not_wanted(
        self, make_queue: MakeQueue
    ) -> None:
        spans = Spans(wait_spans=False)
        queue = make_queue(tracing=spans.tracing)
        queue.job(name="work")(nothing)
        job = await queue.add("work")
        await ran(queue, job)
        assert spans.names == ["add q", "claim q", "process q"]
        stored = await job.get()
        assert stored is not None
        assert stored.processed_on is not None
        waited = facts(spans.one("process q"))["oxcart.job.wait"]
        assert waited == (stored.processed_on - stored.timestamp) / 1000

    async def test_claim_is_linked_with_the_adds_of_its_jobs(
        self, make_queue: MakeQueue, spans: Spans
    ) -> None:
        queue = make_queue(tracing=spans.tracing)
        queue.job(name="work")(nothing)
        jobs = [await queue.add("work"), await queue.add("work")]
        await ran(queue, *jobs, concurrency=10)
        claim = spans.one("claim q")
        assert claim.kind is SpanKind.CLIENT
        assert parent_of(claim) is None
        assert facts(claim)["messaging.batch.message_count"] == 2
        assert set(linked(claim)) == {id_of(span) for span in spans.named("add q")}

    async def test_jobs_of_add_many_share_the_span_of_the_call(
        self, make_queue: MakeQueue, spans: Spans
    ) -> None:
        queue = make_queue(tracing=spans.tracing)
        queue.job(name="work")(nothing)
        jobs = await queue.add_many([("work", None), ("work", None, {"attempts": 2}), ("work", None)])
        await ran(queue, *jobs)
        add = spans.one("add q")
        assert facts(add)["messaging.batch.message_count"] == 3
        assert [parent_of(run) for run in spans.named("process q")] == [id_of(add)] * 3

    async def test_job_carries_w3c_where_bullmq_keeps_it(
        self, make_queue: MakeQueue, spans: Spans, store: redis.Redis
    ) -> None:
        queue = make_queue(tracing=spans.tracing)
        job = await queue.add("work", {"n": 1}, attempts=7)
        add = spans.one("add q")
        assert carried(store, job.id) == {"traceparent": header_of(add)}
        stored = await job.get()
        assert stored is not None
        assert stored.options.attempts == 7
        assert json.loads(stored.options.trace_context or "") == carried(store, job.id)

    async def test_failed_add_is_an_error(self, make_queue: MakeQueue, spans: Spans) -> None:
        queue = make_queue(tracing=spans.tracing)
        with pytest.raises(ValidationError):
            await queue.add("work", "x" * 100, size_limit=10)
        add = spans.one("add q")
        assert add.status.status_code is StatusCode.ERROR
        assert facts(add)["error.type"] == "PayloadTooLarge"

    async def test_add_of_an_existing_job_says_so(self, make_queue: MakeQueue, spans: Spans) -> None:
        queue = make_queue(tracing=spans.tracing)
        await queue.add("work", job_id="a-1")
        await queue.add("work", job_id="a-1")
        assert [facts(one).get("oxcart.jobs.existing") for one in spans.named("add q")] == [None, 1]

    async def test_lane_counts_as_its_queue(self, make_queue: MakeQueue, spans: Spans) -> None:
        queue = make_queue(tracing=spans.tracing)
        queue.job(name="work")(nothing)
        job = await queue.add("work", target={"capabilities": ["gpu"]})
        await ran(queue, job, abilities={"capabilities": ["gpu"]})
        assert spans.names == ["add q", "claim q", "process q", "wait q"]


class TestAttempts:
    async def test_each_attempt_is_a_span_below_the_add(self, make_queue: MakeQueue, spans: Spans) -> None:
        queue = make_queue(tracing=spans.tracing)

        @queue.job(attempts=2, backoff=0.01)
        async def work(job: RunningJob) -> None:
            if job.attempt == 1:
                raise LookupError("no such row")

        await ran(queue, await work.enqueue())
        first, second = spans.named("process q")
        add = spans.one("add q")
        assert parent_of(first) == parent_of(second) == id_of(add)
        assert facts(first)["oxcart.job.outcome"] == "retried"
        assert facts(first)["oxcart.job.category"] == "temporary"
        assert facts(first)["error.type"] == "LookupError"
        assert first.status.status_code is StatusCode.ERROR
        assert first.status.description == "no such row"
        (event,) = first.events
        assert (event.name, (event.attributes or {})["exception.type"]) == ("exception", "LookupError")
        assert (facts(second)["oxcart.job.attempt"], facts(second)["oxcart.job.outcome"]) == (2, "completed")
        job, again = spans.named("wait q")
        assert parent_of(job) == parent_of(again) == id_of(add)
        assert job.end_time is not None
        assert again.start_time is not None
        assert again.start_time >= job.end_time  # it begins when the backoff has passed

    async def test_final_failure_timeout_and_snooze_have_their_outcomes(
        self, make_queue: MakeQueue, spans: Spans
    ) -> None:
        queue = make_queue(tracing=spans.tracing, attempts=1)
        snoozed: list[str] = []

        @queue.job
        async def refuse() -> None:
            raise PermanentError("bad card", code="card")

        @queue.job(timeout=0.05)
        async def hang() -> None:
            await asyncio.Event().wait()

        @queue.job
        async def doze(job: RunningJob) -> Snooze | None:
            snoozed.append(job.id)
            return Snooze("10ms") if len(snoozed) == 1 else None

        jobs = [await refuse.enqueue(), await hang.enqueue(), await doze.enqueue()]
        async with Worker(queue, concurrency=5).running():
            await eventually(lambda: len(spans.named("process q")) == 4, "four attempts")
        of = {job.id: name for job, name in zip(jobs, ("refuse", "hang", "doze"), strict=True)}
        found = sorted(
            (of[str(facts(run)["messaging.message.id"])], str(facts(run)["oxcart.job.outcome"]))
            for run in spans.named("process q")
        )
        assert found == [("doze", "completed"), ("doze", "snoozed"), ("hang", "failed"), ("refuse", "failed")]
        categories = {facts(run).get("error.type") for run in spans.named("process q")}
        assert categories == {None, "card", "AttemptTimeout"}

    async def test_job_returned_at_shutdown_ends_its_span(self, make_queue: MakeQueue, spans: Spans) -> None:
        queue = make_queue(tracing=spans.tracing)
        began = asyncio.Event()

        @queue.job
        async def hang() -> None:
            began.set()
            await asyncio.Event().wait()

        await hang.enqueue()
        async with Worker(queue, shutdown_timeout=0).running():
            await began.wait()
        assert facts(spans.one("process q"))["oxcart.job.outcome"] == "given_back"

    async def test_thread_that_ignores_the_shutdown_ends_its_span(
        self, make_queue: MakeQueue, spans: Spans
    ) -> None:
        queue = make_queue(tracing=spans.tracing)
        began, may_end = threading.Event(), threading.Event()

        @queue.job
        def hang() -> None:
            began.set()
            may_end.wait(30)

        await hang.enqueue()
        try:
            async with Worker(queue, shutdown_timeout=0).running():
                await eventually(began.is_set, "the thread runs")
        finally:
            may_end.set()
        assert facts(spans.one("process q"))["oxcart.job.outcome"] == "given_back"


class TestHandlers:
    async def test_handler_and_what_it_adds_are_below_the_attempt(
        self, make_queue: MakeQueue, spans: Spans
    ) -> None:
        queue = make_queue(tracing=spans.tracing)

        @queue.job
        async def outer() -> None:
            with spans.tracer.start_as_current_span("own"):
                await queue.add("inner")

        queue.job(name="inner")(nothing)
        await outer.enqueue()
        async with Worker(queue).running():
            await eventually(lambda: len(spans.named("process q")) == 2, "both ran")
        first, second = spans.named("process q")
        own = spans.one("own")
        inner_add = spans.named("add q")[1]
        assert parent_of(own) == id_of(first)
        assert parent_of(inner_add) == id_of(own)
        assert parent_of(second) == id_of(inner_add)
        assert len({trace_of(span) for span in spans.all if span.name != "claim q"}) == 1

    async def test_no_context_leaks_from_job_to_job(self, make_queue: MakeQueue, spans: Spans) -> None:
        queue = make_queue(tracing=spans.tracing)
        seen: list[int] = []

        @queue.job
        async def look() -> None:
            seen.append(trace.get_current_span().get_span_context().trace_id)

        with spans.tracer.start_as_current_span("request"):
            first = await look.enqueue()
        second = await look.enqueue()
        await ran(queue, first, second)
        assert len(set(seen)) == 2
        assert seen[0] == trace_of(spans.one("request"))

    async def test_thread_is_within_the_attempt(self, make_queue: MakeQueue, spans: Spans) -> None:
        queue = make_queue(tracing=spans.tracing)

        @queue.job
        def outer(job: SyncRunningJob) -> WaitForChildren | None:
            if job.fencing > 1:
                return None
            with spans.tracer.start_as_current_span("own"):
                job.add_children(Flow(queue, "child"))
            return WaitForChildren()

        queue.job(name="child")(nothing)
        await ran(queue, await outer.enqueue())
        own = spans.one("own")
        assert parent_of(own) == id_of(spans.named("process q")[0])
        assert parent_of(spans.named("add q")[1]) == id_of(own)

    async def test_process_continues_the_trace(
        self, make_queue: MakeQueue, spans: Spans, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue = make_queue(tracing=spans.tracing)
        task = queue.job(run="process")(span_here)
        job = await task.enqueue()
        async with Worker(queue).running():
            found = await job.result(timeout=60)
        run = spans.one("process q")
        assert found == {"trace": f"{trace_of(run):x}", "span": f"{id_of(run):x}"}
        assert not [one for one in caplog.records if "does not reach" in one.message]

    async def test_span_of_a_process_is_below_the_attempt(self, make_queue: MakeQueue, spans: Spans) -> None:
        queue = make_queue(tracing=spans.tracing)
        task = queue.job(run="process")(spans_of_process)
        job = await task.enqueue()
        async with Worker(queue).running():
            found = await job.result(timeout=60)
        run = id_of(spans.one("process q"))
        assert found["own"] == found["step charge"] == run
        assert f"{found['logged']:016x}" == f"{run:016x}"

    async def test_step_is_below_the_attempt_and_steps_nest(
        self, make_queue: MakeQueue, spans: Spans
    ) -> None:
        queue = make_queue(tracing=spans.tracing)

        async def call() -> int:
            with spans.tracer.start_as_current_span("own"):
                return 1

        async def mail() -> None:
            raise OSError("away")

        @queue.job
        async def work(job: RunningJob) -> None:
            async def charge() -> int:
                return await job.step("call", call)

            await job.step("charge", charge)
            with pytest.raises(OSError, match="away"):
                await job.step("mail", mail)

        await ran(queue, await work.enqueue())
        charge, called, failed = spans.one("step charge"), spans.one("step call"), spans.one("step mail")
        assert parent_of(charge) == parent_of(failed) == id_of(spans.one("process q"))
        assert parent_of(called) == id_of(charge)
        assert parent_of(spans.one("own")) == id_of(called)
        assert facts(charge) == {"oxcart.step.name": "charge"}
        assert (failed.status.status_code, facts(failed)["error.type"]) == (StatusCode.ERROR, "OSError")

    async def test_step_is_traced_in_the_run_that_calls_it(self, make_queue: MakeQueue, spans: Spans) -> None:
        queue = make_queue(tracing=spans.tracing)

        @queue.job(attempts=2, backoff=0.01)
        def work(job: SyncRunningJob) -> None:
            job.step("charge", lambda: 7)
            if job.attempt == 1:
                raise OSError("away")

        await ran(queue, await work.enqueue())
        first, _ = spans.named("process q")
        assert parent_of(spans.one("step charge")) == id_of(first)

    async def test_sleep_is_no_error(self, make_queue: MakeQueue, spans: Spans) -> None:
        queue = make_queue(tracing=spans.tracing)

        @queue.job
        async def work(job: RunningJob) -> None:
            await job.sleep("20ms")

        await ran(queue, await work.enqueue())
        first, second = spans.named("process q")
        assert facts(first)["oxcart.job.outcome"] == "snoozed"
        assert first.status.status_code is StatusCode.UNSET
        assert trace_of(first) == trace_of(second)

    async def test_batch_is_linked_with_the_attempts_of_its_jobs(
        self, make_queue: MakeQueue, spans: Spans
    ) -> None:
        queue = make_queue(tracing=spans.tracing)
        seen: list[int] = []

        @queue.job(batch=3, within=30)
        async def work(items: list[int]) -> list[int]:
            seen.append(trace.get_current_span().get_span_context().span_id)
            return items

        jobs = [await work.enqueue(number) for number in range(3)]
        await ran(queue, *jobs, concurrency=3)
        batch = spans.one("process batch q")
        assert set(linked(batch)) == {id_of(run) for run in spans.named("process q")}
        assert seen == [id_of(batch)]
        assert facts(batch)["messaging.batch.message_count"] == 3

    async def test_log_fields_name_the_trace(self, make_queue: MakeQueue, spans: Spans) -> None:
        queue = make_queue(tracing=spans.tracing)
        seen: list[dict[str, Any]] = []

        @queue.job
        async def work(job: RunningJob) -> None:
            seen.append(job.log_fields())

        await ran(queue, await work.enqueue())
        run = spans.one("process q")
        assert seen[0]["trace_id"] == f"{trace_of(run):032x}"
        assert seen[0]["span_id"] == f"{id_of(run):016x}"


class TestFamilies:
    async def test_flow_is_one_trace(self, make_queue: MakeQueue, spans: Spans) -> None:
        queue, images = make_queue(tracing=spans.tracing), make_queue("images", tracing=spans.tracing)
        for one in (queue, images):
            one.job(name="work")(nothing)
        flow = await Flow(queue, "work").after(Flow(images, "work"), Flow(images, "work")).add()
        async with Worker(queue, images).running():
            await flow.result(timeout=30)
        add = spans.one("add q")
        assert facts(add)["messaging.batch.message_count"] == 3
        runs = spans.named("process q") + spans.named("process images")
        assert [parent_of(run) for run in runs] == [id_of(add)] * 3

    async def test_children_of_a_running_job_are_below_its_attempt(
        self, make_queue: MakeQueue, spans: Spans
    ) -> None:
        queue = make_queue(tracing=spans.tracing)

        @queue.job
        async def parent(job: RunningJob) -> WaitForChildren | str:
            if job.fencing > 1:
                return "done"
            await job.add_children(Flow(queue, "child"))
            return WaitForChildren()

        queue.job(name="child")(nothing)
        await ran(queue, await parent.enqueue())
        waiting, child, again = spans.named("process q")
        assert facts(waiting)["oxcart.job.outcome"] == "waiting_children"
        added = spans.named("add q")[1]
        assert parent_of(added) == id_of(waiting)
        assert parent_of(child) == id_of(added)
        assert trace_of(again) == trace_of(child)

    async def test_graph_is_one_trace(self, make_queue: MakeQueue, spans: Spans) -> None:
        queue = make_queue(tracing=spans.tracing)
        queue.job(name="work")(nothing)
        graph = Graph(queue)
        first = graph.job("work")
        graph.job("work", after=[first])
        jobs = await graph.add()
        await ran(queue, *jobs)
        add = spans.one("add q")
        assert [parent_of(run) for run in spans.named("process q")] == [id_of(add)] * 2

    async def test_runs_of_a_schedule_are_traces_of_their_own_linked_with_it(
        self, make_queue: MakeQueue, spans: Spans
    ) -> None:
        queue = make_queue(tracing=spans.tracing)
        queue.job(name="tick")(nothing)
        await queue.schedules.upsert("tick", every=0.05)
        async with Worker(queue).running():
            await eventually(lambda: len(spans.named("process q")) >= 2, "two runs")
            await queue.schedules.remove("tick")
        upsert = spans.one("schedule q")
        runs = spans.named("process q")
        assert {parent_of(run) for run in runs} == {None}
        assert [linked(run) for run in runs] == [[id_of(upsert)]] * len(runs)
        assert len({trace_of(span) for span in [*runs, upsert]}) == len(runs) + 1
        waits = {trace_of(wait): parent_of(wait) for wait in spans.named("wait q")}
        assert waits == {trace_of(run): id_of(run) for run in runs}


class TestWebhooks:
    async def test_webhook_continues_the_trace_to_its_receiver(
        self, make_queue: MakeQueue, spans: Spans, receiver: Receiver
    ) -> None:
        hooks = Webhooks(SECRET, allow=HERE)
        queue = make_queue(tracing=spans.tracing, webhooks=hooks)
        queue.job(name="work")(nothing)
        await queue.add("work", callback_url=receiver.url)
        async with Worker(queue).running():
            await eventually(lambda: spans.named("process q.webhooks"), "the webhook is sent")
        run, add = spans.one("process q"), spans.one("add q.webhooks")
        deliver, post = spans.one("process q.webhooks"), spans.one("POST")
        assert parent_of(add) == id_of(run)
        assert parent_of(deliver) == id_of(add)
        assert parent_of(post) == id_of(deliver)
        assert facts(post) == {
            "http.request.method": "POST",
            "http.response.status_code": 200,
            "server.address": "127.0.0.1",
            "server.port": receiver.port,
            "url.full": f"http://127.0.0.1:{receiver.port}/hook",
        }
        ((headers, _),) = receiver.got
        assert headers["traceparent"] == header_of(post)

    async def test_refused_webhook_is_an_error(
        self, make_queue: MakeQueue, spans: Spans, receiver: Receiver
    ) -> None:
        receiver.answers.append(b"HTTP/1.1 404 Not Found\r\n")
        queue = make_queue(tracing=spans.tracing, webhooks=Webhooks(SECRET, allow=HERE))
        queue.job(name="work")(nothing)
        await queue.add("work", callback_url=receiver.url)
        async with Worker(queue).running():
            await eventually(lambda: spans.named("process q.webhooks"), "the webhook is sent")
        post = spans.one("POST")
        assert (post.status.status_code, facts(post)["error.type"]) == (StatusCode.ERROR, "404")
        assert facts(spans.one("process q.webhooks"))["error.type"] == "http_404"
