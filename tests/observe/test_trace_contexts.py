"""How a trace travels: in a job, in baggage, without a provider, and past a tracer that fails."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from typing import Any

import pytest
import redis
from opentelemetry import baggage
from opentelemetry import context as contexts
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased

from oxcart import (
    Queue,
)
from oxcart.errors import ValidationError
from oxcart.observe.tracing import Tracing
from oxcart.sync import Queue as SyncQueue
from tests.conftest import MakeQueue
from tests.engine.test_webhooks import receiver as receiver
from tests.observe.spans import Spans, carried, facts, id_of, nothing, parent_of, ran, trace_of

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> Spans:
    return Spans()


class TestContexts:
    @pytest.mark.parametrize("protocol", ["bullmq", "bridge"])
    async def test_context_of_the_caller_s_own_is_carried(
        self, make_queue: MakeQueue, spans: Spans, protocol: str
    ) -> None:
        queue = make_queue(tracing=spans.tracing, protocol=protocol)
        queue.job(name="work")(nothing)
        job = await queue.add("work", trace_context={"traceparent": PARENT, "tracestate": "a=b"})
        await ran(queue, job)
        run = spans.one("process q")
        assert f"{trace_of(run):032x}" == PARENT[3:35]
        assert run.parent is not None
        assert f"{run.parent.span_id:016x}" == PARENT[36:52]
        assert run.parent.trace_state.to_header() == "a=b"

    async def test_bridge_carries_the_trace(self, make_queue: MakeQueue, spans: Spans) -> None:
        queue = make_queue(tracing=spans.tracing, protocol="bridge")
        queue.job(name="work")(nothing)
        await ran(queue, await queue.add("work"))
        assert spans.names == ["add q", "claim q", "process q", "wait q"]
        assert parent_of(spans.one("process q")) == id_of(spans.one("add q"))
        assert facts(spans.one("process q"))["messaging.system"] == "bridgemq"

    @pytest.mark.parametrize(
        ("value", "words"),
        [
            ({"traceparent": "00-xyz"}, "traceparent"),
            ({"traceparent": "00-" + "0" * 32 + "-b7ad6b7169203331-01"}, "traceparent"),
            ({"traceparent": 1}, "mapping"),
            ("no json", "JSON"),
            ({"baggage": "x" * 10_000}, "at most 9216 bytes"),
            (7, "mapping"),
        ],
    )
    async def test_malformed_context_is_refused(
        self, queue: Queue, store: redis.Redis, value: Any, words: str
    ) -> None:
        with pytest.raises(ValidationError, match=words):
            await queue.add("work", trace_context=value)
        assert store.keys("*") == []

    @pytest.mark.parametrize("text", ["", "no json", "[]", '{"traceparent": 7}', '{"traceparent": "00-z"}'])
    async def test_malformed_context_of_a_peer_starts_a_trace(
        self, make_queue: MakeQueue, spans: Spans, store: redis.Redis, text: str
    ) -> None:
        queue = make_queue(tracing=spans.tracing)
        queue.job(name="work")(nothing)
        job = await queue.add("work")
        store.hset(f"bull:q:{job.id}", "opts", json.dumps({"attempts": 1, "tm": text}))
        await ran(queue, job)
        assert parent_of(spans.one("process q")) is None

    async def test_baggage_is_carried_only_on_request(self, make_queue: MakeQueue) -> None:
        seen: list[object] = []
        for wanted in (False, True):
            spans = Spans(baggage=wanted)
            queue = make_queue(f"q{int(wanted)}", tracing=spans.tracing)

            @queue.job
            async def work() -> None:
                seen.append(baggage.get_baggage("tenant"))

            token = contexts.attach(baggage.set_baggage("tenant", "acme"))
            job = await work.enqueue()
            contexts.detach(token)
            await ran(queue, job)
        assert seen == [None, "acme"]

    async def test_unsampled_trace_records_nothing_and_is_carried_on(
        self, make_queue: MakeQueue, store: redis.Redis
    ) -> None:
        spans = Spans(sampler=ParentBased(ALWAYS_OFF))
        queue = make_queue(tracing=spans.tracing)
        queue.job(name="work")(nothing)
        job = await queue.add("work")
        assert carried(store, job.id)["traceparent"][-1] in "02"  # the lowest bit says whether it is sampled
        await ran(queue, job)
        assert spans.names == []

    async def test_sampler_may_overrule_the_producer(self, make_queue: MakeQueue) -> None:
        for follow, names in ((True, []), (False, ["process q0"])):
            spans = Spans(sampler=ALWAYS_ON)
            tracing = Tracing(tracer_provider=spans.provider, follow_sampling=follow)
            queue = make_queue(f"q{int(follow)}", tracing=tracing)
            queue.job(name="work")(nothing)
            job = await queue.add("work", trace_context={"traceparent": PARENT[:-2] + "00"})
            await ran(queue, job)
            assert [name for name in spans.names if name.startswith("process")] == names

    async def test_sync_face_is_below_the_caller_s_span(self, url: str, spans: Spans) -> None:
        def add() -> None:
            with spans.tracer.start_as_current_span("request"):
                queue = SyncQueue("q", url=url, tracing=spans.tracing)
                queue.add("work")
                queue.close()

        await asyncio.to_thread(add)
        assert parent_of(spans.one("add q")) == id_of(spans.one("request"))

    async def test_worker_without_tracing_leaves_the_context_alone(
        self, make_queue: MakeQueue, spans: Spans
    ) -> None:
        traced = make_queue(tracing=spans.tracing)
        job = await traced.add("work")
        plain = make_queue()
        plain.job(name="work")(nothing)
        await ran(plain, job)
        assert spans.names == ["add q"]


class Broken(SpanProcessor):
    """A processor that fails at every span."""

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        raise OSError("no room")

    def on_end(self, span: ReadableSpan) -> None:
        raise OSError("no room")


async def test_tracer_that_fails_costs_no_job(
    make_queue: MakeQueue, spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    spans.provider.add_span_processor(Broken())
    queue = make_queue(tracing=spans.tracing)
    queue.job(name="work")(nothing)
    await ran(queue, await queue.add("work"))
    assert {one.name for one in caplog.records if one.levelno >= logging.ERROR} == {"oxcart.tracing"}


async def test_without_a_provider_jobs_run_untraced(make_queue: MakeQueue, store: redis.Redis) -> None:
    queue = make_queue(tracing=Tracing())
    queue.job(name="work")(nothing)
    job = await queue.add("work")
    assert "tm" not in json.loads(store.hget(f"bull:q:{job.id}", "opts"))  # type: ignore[arg-type]
    await ran(queue, job)


def test_missing_package_names_the_extra() -> None:
    code = "import sys; sys.modules['opentelemetry'] = None; import oxcart.observe.tracing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingExtra: tracing needs packages that are not installed" in done.stderr
    assert "pip install 'oxcart[otel]'" in done.stderr


def test_a_program_without_tracing_imports_no_opentelemetry() -> None:
    code = (
        "import oxcart, oxcart.sync, oxcart.testing, sys; print([m for m in sys.modules if 'opentel' in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
