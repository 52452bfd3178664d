"""Traces of jobs by OpenTelemetry: ``Queue("emails", tracing=Tracing())``.

A trace goes from the code that adds a job, over the job itself, to the attempts of its handler, to what they
add and call, and to the webhook. It goes through Node too: the context is where BullMQ's telemetry keeps it.
docs/tracing.md lists the spans. Needs ``pip install 'oxcart[otel]'``, which brings the API; the SDK that
samples and exports is yours.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from oxcart.observe import _spans
from oxcart.observe._roots import Roots
from oxcart.observe._spans import (
    Context,
    Current,
    DroppedAdd,
    DroppedRun,
    Link,
    OpenAdd,
    OpenPost,
    Run,
    SpanKind,
    attributes_of,
    contexts,
    trace,
)

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, MeterProvider
    from opentelemetry.trace import Span, Tracer, TracerProvider

    from oxcart.engine.running import RunningJob

log = logging.getLogger("oxcart.tracing")

#: The conventions that names and attributes follow.
SCHEMA = "https://opentelemetry.io/schemas/1.38.0"


class Tracing:
    """Makes spans of what happens to the jobs of a queue; one object may serve many queues.

    Args:
        tracer_provider: Makes the tracer; the global provider by default.
        meter_provider: Makes a meter that counts added jobs (``messaging.client.sent.messages``); without it
            nothing is counted. What workers do is measured by ``oxcart.observe.meters``.
        baggage: Whether jobs also carry the baggage of the code that adds them. Off by default, because
            baggage may hold what must not be stored.
        wait_spans: Whether the wait of a recorded attempt is a span of its own. Otherwise it is only the
            attribute ``oxcart.job.wait`` of the attempt's span, which saves a third of the SDK's work.
        follow_sampling: Whether adds and attempts below a span that is not sampled make no spans, without
            asking the sampler again. The trace is carried on in any case.

    Raises:
        MissingExtra: The package ``opentelemetry-api`` is not installed.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        baggage: bool = False,
        wait_spans: bool = True,
        follow_sampling: bool = True,
    ) -> None:
        self._roots = Roots(tracer_provider, ("oxcart", _version(), SCHEMA))
        self._sent: Counter | None = None
        if meter_provider is not None:
            meter = meter_provider.get_meter("oxcart", _version(), SCHEMA)
            self._sent = meter.create_counter(
                "messaging.client.sent.messages", "{message}", "Jobs that were added."
            )
        self.baggage = baggage
        self.wait_spans = wait_spans
        self.follow_sampling = follow_sampling

    @property
    def tracer(self) -> Tracer:
        """Starts the spans."""
        return self._roots.tracer

    def add(
        self,
        protocol: str,
        queue: str,
        names: Sequence[str],
        *,
        operation: str = "add",
        below: Context | None = None,
    ) -> OpenAdd | DroppedAdd:
        """Traces an add; see `oxcart.engine.tracing.Tracing`."""
        parent: Any = (contexts.get_current() if below is None else below).get(_spans.SPAN_KEY)
        sent = None if self._sent is None else self._counting(queue, operation)
        if parent is not None and parent.get_span_context().is_valid:
            if self._is_dropped(parent):
                return DroppedAdd(_spans.write_context(parent, below, self.baggage), sent)
            tracer = self._roots.tracer
        else:
            drawn = None if self._roots.absent() else self._roots.draw()
            if drawn is None or isinstance(drawn, str):
                return DroppedAdd(_spans.with_baggage(drawn, below) if self.baggage else drawn, sent)
            tracer = drawn
        attributes = attributes_of(protocol, queue, operation, "send")
        if len(names) == 1:
            attributes["oxcart.job.name"] = names[0]
        elif names:
            attributes["messaging.batch.message_count"] = len(names)
        span = _spans.start(tracer, f"{operation} {queue}", below, SpanKind.PRODUCER, attributes)
        context = _spans.write_context(span, below, self.baggage)
        return OpenAdd(span, context, is_counted=bool(names), sent=sent)

    def claimed(self, protocol: str, queue: str, jobs: Sequence[RunningJob], seconds: float) -> None:
        """Traces a claim: a span of its own, linked with the spans that added its jobs."""
        drawn = self._roots.draw()
        if isinstance(drawn, str) or self._roots.absent():
            return
        links = []
        for job in jobs:
            text = job.options.trace_context
            if text is None or _spans.is_dropped(text):
                continue
            _, added = _spans.read_context(text, self.baggage)
            if added is not None and added.trace_flags.sampled:
                links.append(Link(added))
        attributes = attributes_of(protocol, queue, "claim", "receive")
        attributes["messaging.batch.message_count"] = len(jobs)
        attributes["messaging.client.id"] = jobs[0].worker_id
        begun = _spans.ago(seconds)
        name = f"claim {queue}"
        _spans.end(_spans.start(drawn, name, Context(), SpanKind.CLIENT, attributes, links, begun))

    def run(self, protocol: str, job: RunningJob) -> Run | None:
        """Starts the span of an attempt."""
        queue, text = job.queue, job.options.trace_context
        is_run = job.claim.schedule_id is not None
        if text is not None and not is_run and self.follow_sampling and _spans.is_dropped(text):
            return DroppedRun(self, text, protocol, queue)
        around, added = _spans.read_context(text, self.baggage)
        links, tracer = None, self._roots.tracer
        if added is not None and is_run:
            # A schedule fires for years: every run is a trace of its own, linked with where it was set.
            links = [Link(added)]
            around, added = trace.set_span_in_context(trace.INVALID_SPAN, around), None
        if added is None:
            drawn = self._roots.draw()
            if isinstance(drawn, str):
                return DroppedRun(self, drawn, protocol, queue, around)
            if text is None and self._roots.absent():
                return None  # no trace, and none can begin
            tracer = drawn
        elif (self.follow_sampling and not added.trace_flags.sampled) or self._roots.absent():
            return Run(self, trace.get_current_span(around), around, protocol, queue)
        span = _spans.start(
            tracer, f"process {queue}", around, SpanKind.CONSUMER, self._facts(protocol, job), links
        )
        within = trace.set_span_in_context(span, around)
        if self.wait_spans and span.is_recording() and (waited := job.waited_ms) is not None:
            self._record_wait(job, waited, within if added is None else around)
        return Run(self, span, within, protocol, queue)

    def _facts(self, protocol: str, job: RunningJob) -> dict[str, Any]:
        facts = attributes_of(protocol, job.queue, "process", "process")
        facts["messaging.message.id"] = job.id
        facts["messaging.client.id"] = job.worker_id
        facts["oxcart.job.name"] = job.name
        facts["oxcart.job.attempt"] = job.attempt
        if (waited := job.waited_ms) is not None:
            facts["oxcart.job.wait"] = waited / 1000
        if (correlation := job.correlation_id) is not None:
            facts["messaging.message.conversation_id"] = correlation
        return facts

    def _record_wait(self, job: RunningJob, waited: int, around: Context) -> None:
        facts = {"messaging.destination.name": job.queue, "messaging.message.id": job.id}
        began = _spans.ns(job.started_ms - waited)
        wait = _spans.start(self.tracer, f"wait {job.queue}", around, SpanKind.INTERNAL, facts, None, began)
        _spans.end(wait, _spans.ns(job.started_ms))

    def continued(self, context: str | None) -> Current:
        """Makes a stored context the current one."""
        return Current(_spans.read_context(context, self.baggage)[0])

    def post(self, url: str) -> OpenPost:
        """Traces one request of a webhook."""
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        attributes = {
            "http.request.method": "POST",
            "server.address": parts.hostname or "",
            "server.port": parts.port or (443 if secure else 80),
            # Without user, password and query, where secrets are.
            "url.full": f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}",
        }
        span = _spans.start(self.tracer, "POST", None, SpanKind.CLIENT, attributes)
        return OpenPost(span, _spans.headers_of(span))

    def _is_dropped(self, parent: Span) -> bool:
        """Returns whether nothing below a span is recorded."""
        if self._roots.absent():
            return True
        is_sampled = parent.get_span_context().trace_flags.sampled
        return self.follow_sampling and not is_sampled and not parent.is_recording()

    def _counting(self, queue: str, operation: str) -> Callable[[int], None]:
        counter = self._sent
        assert counter is not None
        facts = {"messaging.destination.name": queue, "messaging.operation.name": operation}
        return lambda count: counter.add(count, facts)


def attach(text: str) -> Run:
    """Continues a trace in a handler's process, until its context ends; spans go to its global provider."""
    around, _ = _spans.read_context(text, True)
    contexts.attach(around)
    return Run(Tracing(), trace.get_current_span(around), around, "", "")


def _version() -> str | None:
    try:
        return version("oxcart")
    except PackageNotFoundError:  # the sources without an installation
        return None
