"""A tracer that keeps its spans in memory, for tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import redis
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Sampler

from oxcart import Queue, Worker
from oxcart.observe.tracing import Tracing


class Spans:
    """What a tracer recorded.

    Attributes:
        tracing: The tracing that writes here.
        provider: Its provider, for spans of a test's own.
    """

    def __init__(
        self,
        *,
        baggage: bool = False,
        sampler: Sampler | None = None,
        ids: IdGenerator | None = None,
        wait_spans: bool = True,
    ) -> None:
        self._memory = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, id_generator=ids)
        self.provider.add_span_processor(SimpleSpanProcessor(self._memory))
        self.tracing = Tracing(tracer_provider=self.provider, baggage=baggage, wait_spans=wait_spans)
        self.tracer = self.provider.get_tracer("test")

    @property
    def all(self) -> Sequence[ReadableSpan]:
        """Every ended span, in the order of their ends."""
        return self._memory.get_finished_spans()

    @property
    def names(self) -> list[str]:
        """The names of ended spans, sorted."""
        return sorted(span.name for span in self.all)

    def named(self, name: str) -> list[ReadableSpan]:
        """The ended spans of a name, in the order of their ends."""
        return [span for span in self.all if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """The only ended span of a name."""
        (found,) = self.named(name)
        return found


def id_of(span: ReadableSpan) -> int:
    """The id of a span."""
    assert span.context is not None
    return int(span.context.span_id)


def trace_of(span: ReadableSpan) -> int:
    """The trace of a span."""
    assert span.context is not None
    return int(span.context.trace_id)


def parent_of(span: ReadableSpan) -> int | None:
    """The id of a span's parent."""
    return None if span.parent is None else span.parent.span_id


def linked(span: ReadableSpan) -> list[int]:
    """The ids of the spans that a span is linked with."""
    return [link.context.span_id for link in span.links]


def facts(span: ReadableSpan) -> dict[str, object]:
    """The attributes of a span."""
    return dict(span.attributes or {})


def header_of(span: ReadableSpan) -> str:
    """The W3C header that continues a span."""
    assert span.context is not None
    return f"00-{trace_of(span):032x}-{id_of(span):016x}-{span.context.trace_flags:02x}"


def carried(store: redis.Redis, job_id: str, queue: str = "q") -> dict[str, str]:
    """The carrier in a stored job, where BullMQ's telemetry has it."""
    opts = json.loads(store.hget(f"bull:{queue}:{job_id}", "opts"))  # type: ignore[arg-type]
    found: dict[str, str] = json.loads(opts["tm"])
    return found


async def ran(queue: Queue, *jobs: Any, **options: Any) -> None:
    async with Worker(queue, **options).running():
        for job in jobs:
            await job.result(timeout=30)


async def nothing() -> None:
    pass
