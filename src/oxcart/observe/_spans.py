"""Spans of OpenTelemetry for the moments of a job, and the W3C text that carries them.

The text is written and read here and not by the global propagator: a job always carries W3C, and this costs a
third. A carrier of another kind, which a peer wrote, is left to the propagator.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from oxcart.engine.tracing import run_span
from oxcart.model.errors import MissingExtra
from oxcart.model.trace_context import TRACEPARENT, read_carrier
from oxcart.observe._roots import PLAIN_START, plain_context
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


#: The length of a context that is a ``traceparent`` and nothing else.
PLAIN = 73
#: Such a context of a trace that is not sampled: the lowest bit of its flags is 0.
_DROPPED = re.compile(
    r'\{"traceparent":"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f][02468ace]"\}'
)

#: The key of a span in a context.
(SPAN_KEY,) = trace.set_span_in_context(trace.INVALID_SPAN, Context())


def is_dropped(text: str) -> bool:
    """Returns whether a stored context is plain, well-formed and of a trace that is not sampled."""
    return len(text) == PLAIN and _DROPPED.fullmatch(text) is not None


#: What the conventions call ``messaging.system``, by protocol.
SYSTEMS = {"bullmq": "bullmq", "bridge": "bridgemq", "memory": "oxcart"}


def attributes_of(protocol: str, queue: str, operation: str, kind: str) -> dict[str, Any]:
    """Returns the attributes that every messaging span has."""
    return {
        "messaging.system": SYSTEMS.get(protocol, protocol),
        "messaging.destination.name": queue,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }


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
    if not made.is_valid:
        return with_baggage(None, context) if baggage else None
    text = plain_context(made.trace_id, made.span_id, int(made.trace_flags))
    state = made.trace_state.to_header() if made.trace_state else None
    return with_baggage(text, context, state, baggage) if baggage or state else text


def with_baggage(
    text: str | None, context: Context | None, state: str | None = None, baggage: bool = True
) -> str | None:
    """Returns a plain context with the state of its trace and the baggage of the caller's context."""
    carrier = {} if text is None else read_carrier(text)
    if state:
        carrier["tracestate"] = state
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


class DroppedAdd:
    """An add whose trace is not sampled: its jobs carry the context and nothing else happens.

    Args:
        context: The text that the jobs carry; None without a trace.
        sent: Receives the number of jobs, for a counter.
    """

    __slots__ = ("_sent", "context", "is_silent")

    def __init__(self, context: str | None, sent: Callable[[int], None] | None) -> None:
        self.context = context
        self.is_silent = sent is None
        self._sent = sent

    def __enter__(self) -> DroppedAdd:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def added(self, ids: Sequence[str], created: int) -> None:
        """The server has the jobs."""
        if self._sent is not None:
            self._sent(created)


class OpenAdd(OpenSpan):
    """The span of an add.

    Args:
        span: The span.
        context: The text that the jobs carry.
        is_counted: Whether the span already has the number of jobs.
        sent: Receives the number of jobs, for a counter.
    """

    __slots__ = ("_is_counted", "_sent", "context")

    is_silent = False

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


class CarriedSpan(NonRecordingSpan):
    """The span that added a job, as a context carries it; the text is parsed if someone asks for its ids.

    Args:
        text: A context for which `is_dropped` is true.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def get_span_context(self) -> SpanContext:
        """The ids and the flags."""
        made = read_context(self.text, False)[1]
        assert made is not None
        return made


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

    def enter(self) -> Any:
        """Makes the span the current one, until `leave`."""
        return contexts.attach(self._within)

    def leave(self, token: Any) -> None:
        """Makes what was current before `enter` the current one again."""
        contexts.detach(token)

    def add(self, protocol: str, queue: str, names: Sequence[str]) -> OpenAdd | DroppedAdd:
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
        attributes = attributes_of(self._protocol, self._queue, "process", "process")
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


class DroppedRun(Run):
    """An attempt of a job whose trace is not sampled: it has no span, and carries the context on.

    Args:
        tracing: Whose spans these are.
        text: A context for which `is_dropped` is true.
        protocol: The job's protocol.
        queue: Its queue.
        around: The baggage of the job.
    """

    __slots__ = ("text",)

    text: str

    def __init__(
        self, tracing: Tracing, text: str, protocol: str, queue: str, around: Context | None = None
    ) -> None:
        # Without super(): a call per job is not free.
        self._tracing = tracing
        self.text = text
        self.span = span = CarriedSpan(text)
        self._within = trace.set_span_in_context(span, around) if around else Context({SPAN_KEY: span})
        self._protocol = protocol
        self._queue = queue

    def step(self, name: str) -> Any:
        """Traces nothing."""
        return nullcontext()

    def ended(self, outcome: Outcome) -> None:
        """Ends nothing."""


def ns(ms: int) -> int:
    """Returns a time in nanoseconds."""
    return ms * 1_000_000


def ago(seconds: float) -> int:
    """Returns the time so many seconds ago, in nanoseconds."""
    return time.time_ns() - int(seconds * 1e9)
