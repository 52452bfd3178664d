"""Spans of OpenTelemetry for the moments of a job, and the W3C text that carries them.

The text is written and read here and not by the global propagator: a job always carries W3C, and this costs a
third. A carrier of another kind, which a peer wrote, is left to the propagator.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from oxcart.engine.tracing import run_span
from oxcart.model.errors import MissingExtra
from oxcart.model.trace_context import TRACEPARENT, read_carrier
from oxcart.observe.numbers import status_of

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
    from opentelemetry.baggage.propagation import W3CBaggagePropagator
    from opentelemetry.context import Context
    from opentelemetry.trace import (
        Link,
        NonRecordingSpan,
        Span,
        SpanContext,
        SpanKind,
        StatusCode,
        Tracer,
        TraceState,
    )
except ImportError as error:
    raise MissingExtra("tracing", "otel") from error

__all__ = ["Context", "Link", "SpanKind", "contexts", "trace"]  # for `tracing`, after the check above

if TYPE_CHECKING:
    from oxcart.broker.port import Outcome
    from oxcart.engine.running import RunningJob
    from oxcart.observe.tracing import Tracing

log = logging.getLogger("oxcart.tracing")

_json = msgspec.json.Encoder()
_baggage = W3CBaggagePropagator()


#: The beginning and the length of a context that is a ``traceparent`` and nothing else, as most are.
PLAIN_START = '{"traceparent":"00-'
PLAIN = 73


def start(
    tracer: Tracer,
    name: str,
    context: Context | None,
    kind: SpanKind,
    attributes: dict[str, Any],
    links: Sequence[Link] | None = None,
    start_ns: int | None = None,
) -> Span:
    """Starts a span; a tracer that fails costs its span and no job."""
    try:
        return tracer.start_span(name, context, kind, attributes, links, start_ns)
    except Exception:  # of a sampler or a processor
        log.exception("could not start the span %r", name)
        return trace.INVALID_SPAN


def end(span: Span, at_ns: int | None = None) -> None:
    """Ends a span; a processor that fails costs no job."""
    try:
        span.end(at_ns)
    except Exception:
        log.exception("could not end a span")


@lru_cache(maxsize=1024)
def read_context(text: str | None, baggage: bool) -> tuple[Context, SpanContext | None]:
    """Returns the context that a job carries, and the span that added it; an empty one without a trace."""
    if not text:
        return Context(), None
    made: SpanContext | None = None
    if len(text) == PLAIN and text.startswith(PLAIN_START):  # no need to decode JSON
        made = _read_parent(text[16:-2], None)
        if made is not None:
            return trace.set_span_in_context(NonRecordingSpan(made), Context()), made
    carrier, context = read_carrier(text), Context()
    made = _read_parent(carrier.get("traceparent", ""), carrier.get("tracestate"))
    if made is not None:
        context = trace.set_span_in_context(NonRecordingSpan(made), context)
    elif carrier:  # of another kind, or of a later version
        span = trace.get_current_span(propagate.extract(carrier, context))
        if span.get_span_context().is_valid:
            context, made = trace.set_span_in_context(span, context), span.get_span_context()
    if baggage and "baggage" in carrier:
        context = _baggage.extract(carrier, context)
    return context, made


def _read_parent(header: str, state: str | None) -> SpanContext | None:
    """Returns the span of a ``traceparent``; None if it is malformed."""
    if not TRACEPARENT.fullmatch(header):
        return None
    return SpanContext(
        int(header[3:35], 16),
        int(header[36:52], 16),
        True,
        trace.TraceFlags(int(header[53:], 16)),
        TraceState.from_header([state]) if state else None,
    )


def write_context(span: Span, context: Context | None, baggage: bool) -> str | None:
    """Returns the text that a job carries; None if there is no trace and no baggage."""
    made = span.get_span_context()
    carrier: dict[str, str] = {}
    if made.is_valid:
        parent = f"00-{made.trace_id:032x}-{made.span_id:016x}-{made.trace_flags:02x}"
        if not baggage and not made.trace_state:
            return f'{PLAIN_START}{parent[3:]}"}}'
        carrier["traceparent"] = parent
        if made.trace_state:
            carrier["tracestate"] = made.trace_state.to_header()
    if baggage:
        _baggage.inject(carrier, context)
    return _json.encode(carrier).decode() if carrier else None


def headers_of(span: Span) -> dict[str, str]:
    """Returns the headers by which the receiver of a request continues the trace."""
    text = write_context(span, None, False)
    return read_carrier(text) if text else {}


class Current:
    """Makes a context the current one within a block."""

    __slots__ = ("_context", "_token")

    def __init__(self, context: Context) -> None:
        self._context = context
        self._token: Any = None

    def __enter__(self) -> None:
        self._token = contexts.attach(self._context)

    def __exit__(self, *error: object) -> None:
        contexts.detach(self._token)


class OpenSpan:
    """A span that ends with its block, and fails with it.

    Args:
        span: The span.
        context: Made current within the block, with the span; None leaves the current context.
    """

    __slots__ = ("_context", "_token", "span")

    def __init__(self, span: Span, context: Context | None = None) -> None:
        self.span = span
        self._context = context
        self._token: Any = None

    def __enter__(self) -> Any:
        if self._context is not None:
            self._token = contexts.attach(trace.set_span_in_context(self.span, self._context))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace_: TracebackType | None
    ) -> None:
        if self._token is not None:
            contexts.detach(self._token)
        if isinstance(error, Exception):  # the end of a handler that waits is none
            self.span.set_attribute("error.type", type(error).__name__)
            self.span.set_status(StatusCode.ERROR, str(error))
            self.span.record_exception(error)
        end(self.span)


class OpenAdd(OpenSpan):
    """The span of an add.

    Args:
        span: The span.
        context: The text that the jobs carry.
        is_counted: Whether the span already has the number of jobs.
        sent: Receives the number of jobs, for a counter.
    """

    __slots__ = ("_is_counted", "_sent", "context")

    def __init__(
        self, span: Span, context: str | None, *, is_counted: bool, sent: Callable[[int], None] | None
    ) -> None:
        super().__init__(span)
        self.context = context
        self._is_counted = is_counted
        self._sent = sent

    def added(self, ids: Sequence[str], created: int) -> None:
        """The server has the jobs."""
        if self._sent is not None:
            self._sent(created)
        if not self.span.is_recording():
            return
        if not self._is_counted:
            self.span.set_attribute("messaging.batch.message_count", len(ids))
        if len(ids) == 1:
            self.span.set_attribute("messaging.message.id", ids[0])
        if created < len(ids):
            self.span.set_attribute("oxcart.jobs.existing", len(ids) - created)


class OpenPost(OpenSpan):
    """The span of a webhook's request.

    Attributes:
        headers: By these the receiver continues the trace.
    """

    __slots__ = ("headers",)

    def __init__(self, span: Span, headers: dict[str, str]) -> None:
        super().__init__(span)
        self.headers = headers

    def answered(self, status: int) -> None:
        """The receiver answered."""
        self.span.set_attribute("http.response.status_code", status)
        if status >= 400:
            self.span.set_attribute("error.type", str(status))
            self.span.set_status(StatusCode.ERROR)


class Run:
    """The span of an attempt.

    Args:
        tracing: Whose spans these are.
        span: The span.
        within: The context of the handler: the span, and the baggage of the job.
        protocol: The job's protocol.
        queue: Its queue.
    """

    __slots__ = ("_is_over", "_protocol", "_queue", "_tracing", "_within", "span")

    def __init__(self, tracing: Tracing, span: Span, within: Context, protocol: str, queue: str) -> None:
        self._tracing = tracing
        self.span = span
        self._within = within
        self._protocol = protocol
        self._queue = queue
        self._is_over = False

    @property
    def text(self) -> str | None:
        """The text by which others continue the trace after this attempt."""
        return write_context(self.span, self._within, self._tracing.baggage)

    @property
    def ids(self) -> dict[str, str]:
        """The trace id and the span id, as fields of a log line."""
        made = self.span.get_span_context()
        if not made.is_valid:
            return {}
        return {"trace_id": f"{made.trace_id:032x}", "span_id": f"{made.span_id:016x}"}

    def current(self) -> Current:
        """Makes the span the current one."""
        return Current(self._within)

    def add(self, protocol: str, queue: str, names: Sequence[str]) -> OpenAdd:
        """Traces an add below this attempt."""
        return self._tracing.add(protocol, queue, names, below=self._inner())

    def step(self, name: str) -> OpenSpan:
        """Traces a step below this attempt, or below the current step."""
        inner = self._inner()
        attributes = {"oxcart.step.name": name}
        span = start(self._tracing.tracer, f"step {name}", inner, SpanKind.INTERNAL, attributes)
        return OpenSpan(span, inner)

    def batch(self, jobs: Sequence[RunningJob]) -> OpenSpan:
        """Traces the one call for a batch of jobs, linked with the attempt of each."""
        runs = [run_span(job) for job in jobs]
        links = [Link(run.span.get_span_context()) for run in runs if isinstance(run, Run)]
        attributes = self._tracing.attributes(self._protocol, self._queue, "process", "process")
        attributes["messaging.batch.message_count"] = len(jobs)
        name = f"process batch {self._queue}"
        span = start(self._tracing.tracer, name, Context(), SpanKind.CONSUMER, attributes, links)
        return OpenSpan(span, Context())

    def portable(self) -> tuple[str, str]:
        """Returns how a handler's process continues the trace."""
        return "oxcart.observe.tracing", self.text or ""

    def ended(self, outcome: Outcome) -> None:
        """The attempt has an outcome."""
        if self._is_over:
            return
        self._is_over = True
        span = self.span
        if not span.is_recording():
            return
        facts: dict[str, str | float] = {"oxcart.job.outcome": status_of(outcome)}
        if outcome.delay_ms:
            facts["oxcart.job.delay"] = outcome.delay_ms / 1000
        if outcome.category:
            facts["oxcart.job.category"] = outcome.category
            facts["error.type"] = outcome.code or outcome.category
        span.set_attributes(facts)
        if outcome.category:
            span.set_status(StatusCode.ERROR, outcome.value.decode("utf-8", "replace"))
            if (error := outcome.error) is not None:
                span.record_exception(error)
        end(span)

    def _inner(self) -> Context:
        """Returns the current context if it is within this attempt, else that of the attempt."""
        here = contexts.get_current()
        inside = trace.get_current_span(here).get_span_context()
        return here if inside.trace_id == self.span.get_span_context().trace_id else self._within


def ns(ms: int) -> int:
    """Returns a time in nanoseconds."""
    return ms * 1_000_000


def ago(seconds: float) -> int:
    """Returns the time so many seconds ago, in nanoseconds."""
    return time.time_ns() - int(seconds * 1e9)
