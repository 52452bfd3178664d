"""Traces of jobs by OpenTelemetry: ``Queue("emails", tracing=Tracing())``.

A trace goes from the code that adds a job, over the job itself, to the attempts of its handler, to what they
add and call, and to the webhook. It goes through Node too: the context is where BullMQ's telemetry keeps it.
docs/tracing.md lists the spans. Needs ``pip install 'oxcart[otel]'``, which brings the API; the SDK that
samples and exports is yours.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from oxcart.observe import _spans
from oxcart.observe._spans import (
    Context,
    Current,
    Link,
    OpenAdd,
    OpenPost,
    Run,
    SpanKind,
    contexts,
    trace,
)

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, MeterProvider
    from opentelemetry.trace import TracerProvider

    from oxcart.engine.running import RunningJob

log = logging.getLogger("oxcart.tracing")

#: The conventions that names and attributes follow.
SCHEMA = "https://opentelemetry.io/schemas/1.38.0"
#: What the conventions call ``messaging.system``, by protocol.
SYSTEMS = {"bullmq": "bullmq", "bridge": "bridgemq", "memory": "oxcart"}


class Tracing:
    """Makes spans of what happens to the jobs of a queue; one object may serve many queues.

    Args:
        tracer_provider: Makes the tracer; the global provider by default.
        meter_provider: Makes a meter that counts added jobs (``messaging.client.sent.messages``); without it
            nothing is counted. What workers do is measured by ``oxcart.observe.meters``.
        baggage: Whether jobs also carry the baggage of the code that adds them. Off by default, because
            baggage may hold what must not be stored.
        follow_sampling: Whether a job whose producer did not sample its trace makes no spans, without asking
            the sampler again. The trace is carried on in any case.

    Raises:
        MissingExtra: The package ``opentelemetry-api`` is not installed.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        baggage: bool = False,
        follow_sampling: bool = True,
    ) -> None:
        self.tracer = trace.get_tracer("oxcart", _version(), tracer_provider, SCHEMA)
        self._sent: Counter | None = None
        if meter_provider is not None:
            meter = meter_provider.get_meter("oxcart", _version(), SCHEMA)
            self._sent = meter.create_counter(
                "messaging.client.sent.messages", "{message}", "Jobs that were added."
            )
        self.baggage = baggage
        self.follow_sampling = follow_sampling

    def add(
        self,
        protocol: str,
        queue: str,
        names: Sequence[str],
        *,
        operation: str = "add",
        below: Context | None = None,
    ) -> OpenAdd:
        """Traces an add; see `oxcart.engine.tracing.Tracing`."""
        attributes = self.attributes(protocol, queue, operation, "send")
        if len(names) == 1:
            attributes["oxcart.job.name"] = names[0]
        elif names:
            attributes["messaging.batch.message_count"] = len(names)
        span = _spans.start(self.tracer, f"{operation} {queue}", below, SpanKind.PRODUCER, attributes)
        context, sent = _spans.write_context(span, below, self.baggage), None
        if (counter := self._sent) is not None:
            facts = {"messaging.destination.name": queue, "messaging.operation.name": operation}
            sent = lambda count: counter.add(count, facts)  # noqa: E731
        return OpenAdd(span, context, is_counted=bool(names), sent=sent)

    def claimed(self, protocol: str, queue: str, jobs: Sequence[RunningJob], seconds: float) -> None:
        """Traces a claim: a span of its own, linked with the spans that added its jobs."""
        links = []
        for job in jobs:
            _, added = _spans.read_context(job.options.trace_context, self.baggage)
            if added is not None and added.trace_flags.sampled:
                links.append(Link(added))
        attributes = self.attributes(protocol, queue, "claim", "receive")
        attributes["messaging.batch.message_count"] = len(jobs)
        attributes["messaging.client.id"] = jobs[0].worker_id
        begun = _spans.ago(seconds)
        name = f"claim {queue}"
        _spans.end(_spans.start(self.tracer, name, Context(), SpanKind.CLIENT, attributes, links, begun))

    def run(self, protocol: str, job: RunningJob) -> Run:
        """Starts the span of an attempt."""
        queue = job.queue
        around, added = _spans.read_context(job.options.trace_context, self.baggage)
        links = None
        if added is not None and job.claim.schedule_id is not None:
            # A schedule fires for years: every run is a trace of its own, linked with where it was set.
            links = [Link(added)]
            around, added = trace.set_span_in_context(trace.INVALID_SPAN, around), None
        elif added is not None and self.follow_sampling and not added.trace_flags.sampled:
            return Run(self, trace.get_current_span(around), around, protocol, queue)
        attributes = self.attributes(protocol, queue, "process", "process")
        span = _spans.start(self.tracer, f"process {queue}", around, SpanKind.CONSUMER, attributes, links)
        within = trace.set_span_in_context(span, around)
        run = Run(self, span, within, protocol, queue)
        if span.is_recording():
            facts: dict[str, str | int] = {
                "messaging.message.id": job.id,
                "messaging.client.id": job.worker_id,
                "oxcart.job.name": job.name,
                "oxcart.job.attempt": job.attempt,
            }
            if (correlation := job.correlation_id) is not None:
                facts["messaging.message.conversation_id"] = correlation
            span.set_attributes(facts)
            if (waited := job.waited_ms) is not None:
                self._record_wait(job, waited, within if added is None else around)
        return run

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

    def attributes(self, protocol: str, queue: str, operation: str, kind: str) -> dict[str, Any]:
        """Returns the attributes that every messaging span has."""
        return {
            "messaging.system": SYSTEMS.get(protocol, protocol),
            "messaging.destination.name": queue,
            "messaging.operation.name": operation,
            "messaging.operation.type": kind,
        }


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
