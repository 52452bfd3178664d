"""Traces, reports of failures and log fields of one order, printed instead of exported.

In a service, the exporter sends spans to a collector, and `SentryHook` or another hook reports failures.
"""

import asyncio

import structlog
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from oxcart import Flow, Queue, RunningJob, Worker
from oxcart.observe.errors import Failure, FailureHook
from oxcart.observe.logs import job_fields
from oxcart.observe.tracing import Tracing

memory = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(memory))
trace.set_tracer_provider(provider)

render = structlog.processors.KeyValueRenderer(key_order=["event", "job_name", "attempt"], drop_missing=True)
structlog.configure(processors=[job_fields, lambda _, __, event: _without_ids(event), render])
log = structlog.get_logger()

tracing = Tracing()
orders = Queue("orders", tracing=tracing)
mails = Queue("mails", tracing=tracing)


@orders.job(attempts=2, backoff="10ms")
async def charge(job: RunningJob, cents: int) -> int:
    """Fails once, as a bank does."""
    await job.step("reserve", reserve, cents)
    if job.attempt == 1:
        raise ConnectionError("the bank does not answer")
    log.info("charged", cents=cents)
    return cents


async def reserve(cents: int) -> int:
    """Runs once for the job, in the first attempt."""
    return cents


@mails.job
async def confirm() -> str:
    """Runs after the charge."""
    return "sent"


def report(failure: Failure) -> None:
    """Reports a failure, as a hook of an error tracker does."""
    print(f"report: {failure.reason}, attempt {failure.job.attempt}, final: {failure.is_final}")


async def main() -> None:
    """Adds a flow below a span of its own, runs it, and prints the trace as a tree."""
    async with orders, mails:
        with trace.get_tracer("shop").start_as_current_span("checkout"):
            flow = await Flow(mails, "confirm").after(charge.flow(cents=500)).add()
        async with Worker(orders, mails, observer=FailureHook(report)).running():
            await flow.result(timeout=30)
    spans = memory.get_finished_spans()
    checkout = next(span for span in spans if span.name == "checkout")
    _show(checkout, [span for span in spans if span.context.trace_id == checkout.context.trace_id])


def _show(span: ReadableSpan, spans: list[ReadableSpan], depth: int = 0) -> None:
    outcome = (span.attributes or {}).get("oxcart.job.outcome", "")
    print(f"{'  ' * depth}{span.name} {outcome}".rstrip())
    below = [one for one in spans if one.parent is not None and one.parent.span_id == span.context.span_id]
    for one in sorted(below, key=lambda one: (one.start_time or 0, one.name)):
        _show(one, spans, depth + 1)


def _without_ids(event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Leaves out what differs in every run of this example."""
    return {name: value for name, value in event.items() if not name.endswith("_id")}


if __name__ == "__main__":
    asyncio.run(main())
