"""Which traces are recorded: by the sampler of the SDK, and below spans that are not sampled."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import redis
from opentelemetry import trace
from opentelemetry.sdk import trace as trace_sdk
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)

from oxcart.engine.running import RunningJob
from tests.conftest import MakeQueue
from tests.observe.spans import Spans, carried, nothing, ran, trace_of

#: Of four traces the first is below a quarter of all ids.
QUARTER = TraceIdRatioBased(0.25)


class FourIds(RandomIdGenerator):
    """Makes trace ids of which a sampler of a quarter takes every fourth."""

    def __init__(self) -> None:
        self._next = itertools.count()

    def generate_trace_id(self) -> int:
        number = next(self._next)
        return ((number + 1) << 64) | ((number % 4) << 62) | 1


class OnlyRecord(Sampler):
    """Records every span and samples none."""

    def should_sample(self, *arguments: Any, **named: Any) -> SamplingResult:
        return SamplingResult(Decision.RECORD_ONLY)

    def get_description(self) -> str:
        return "OnlyRecord"


def traces_of(spans: Spans, name: str) -> Sequence[int]:
    return [trace_of(span) >> 64 for span in spans.named(name)]


@pytest.mark.parametrize("sampler", [QUARTER, ParentBased(QUARTER)], ids=["ratio", "parent"])
async def test_sampler_s_ratio_of_adds_is_recorded_with_their_jobs(
    make_queue: MakeQueue, store: redis.Redis, sampler: Sampler
) -> None:
    spans = Spans(sampler=sampler, ids=FourIds())
    queue = make_queue(tracing=spans.tracing)
    queue.job(name="work")(nothing)
    jobs = [await queue.add("work") for _ in range(8)]
    contexts = [carried(store, job.id)["traceparent"] for job in jobs]
    assert [int(context[3:19], 16) for context in contexts] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [int(context[-1], 16) & 1 for context in contexts] == [1, 0, 0, 0, 1, 0, 0, 0]
    assert traces_of(spans, "add q") == [1, 5]
    await ran(queue, *jobs)
    assert sorted(traces_of(spans, "process q")) == [1, 5]


async def test_jobs_without_a_trace_begin_the_sampler_s_ratio_of_traces(make_queue: MakeQueue) -> None:
    spans = Spans(sampler=ParentBased(QUARTER), ids=FourIds())
    plain = make_queue()
    jobs = [await plain.add("work") for _ in range(4)]
    queue = make_queue(tracing=spans.tracing)
    queue.job(name="work")(nothing)
    await ran(queue, *jobs, concurrency=1)
    # Claims are traces too, so the last number depends on how jobs are claimed.
    begun = sorted(number for name in ("process q", "claim q") for number in traces_of(spans, name))
    assert begun == list(range(1, begun[-1] + 1, 4))
    assert len(begun) > 1


async def test_handler_of_a_dropped_trace_is_below_its_producer(
    make_queue: MakeQueue, store: redis.Redis
) -> None:
    spans = Spans(sampler=ParentBased(ALWAYS_OFF))
    queue = make_queue(tracing=spans.tracing)
    seen: list[Any] = []

    async def current() -> str:
        return str(trace.get_current_span().get_span_context().span_id)

    @queue.job
    async def work(job: RunningJob) -> None:
        seen.append(await current())
        seen.append(await job.step("pay", current))
        seen.append(job.log_fields())
        seen.append((await queue.add("child")).id)

    @queue.job
    async def child() -> None:
        pass

    job = await work.enqueue()
    await ran(queue, job)
    header = carried(store, job.id)["traceparent"]
    assert seen[:2] == [str(int(header[36:52], 16))] * 2
    assert (seen[2]["trace_id"], seen[2]["span_id"]) == (header[3:35], header[36:52])
    assert carried(store, seen[3])["traceparent"] == header
    assert spans.names == []


async def test_add_below_a_dropped_request_carries_the_request(
    make_queue: MakeQueue, store: redis.Redis
) -> None:
    spans = Spans(sampler=ParentBased(ALWAYS_OFF))
    queue = make_queue(tracing=spans.tracing)
    with spans.tracer.start_as_current_span("request") as request:
        job = await queue.add("work")
    made = request.get_span_context()
    assert carried(store, job.id)["traceparent"][3:52] == f"{made.trace_id:032x}-{made.span_id:016x}"


async def test_span_that_is_recorded_and_not_sampled_has_spans_below(make_queue: MakeQueue) -> None:
    spans = Spans(sampler=OnlyRecord())
    queue = make_queue(tracing=spans.tracing)
    recorded: list[str] = []
    spans.provider.add_span_processor(Names(recorded))
    with spans.tracer.start_as_current_span("request"):
        await queue.add("work")
    assert recorded == ["add q", "request"]


class Names(trace_sdk.SpanProcessor):
    """Keeps the names of ended spans, sampled or not."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def on_end(self, span: trace_sdk.ReadableSpan) -> None:
        self._names.append(span.name)


def test_provider_that_is_set_after_the_tracing_counts(url: str) -> None:
    code = f"""
import asyncio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from oxcart import Queue
from oxcart.observe.tracing import Tracing

async def main():
    memory = InMemorySpanExporter()
    async with Queue("q", url={url!r}, tracing=Tracing()) as queue:
        await queue.add("work")
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(memory))
        trace.set_tracer_provider(provider)
        await queue.add("work")
    print([span.name for span in memory.get_finished_spans()])

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "['add q']", done.stderr
