"""Handlers for child processes that look at their trace, fail and log; they must be importable."""

from __future__ import annotations

import logging
from typing import Any

import structlog
from opentelemetry import trace
from structlog.typing import EventDict

from oxcart import SyncRunningJob
from oxcart.observe.logs import job_fields
from tests.observe.spans import Spans, parent_of


def span_here() -> dict[str, str]:
    here = trace.get_current_span().get_span_context()
    return {"trace": f"{here.trace_id:x}", "span": f"{here.span_id:x}"}


def spans_of_process(job: SyncRunningJob) -> dict[str, int | None]:
    """Traces with a provider of this process's own, as an application sets one up."""
    spans = Spans()
    trace.set_tracer_provider(spans.provider)
    with spans.tracer.start_as_current_span("own"):
        pass
    job.step("charge", lambda: 7)
    found = {span.name: parent_of(span) for span in spans.all}
    return {**found, "logged": int(job.log_fields()["span_id"], 16)}


def break_down() -> None:
    raise ArithmeticError("no remainder")


def break_down_with_a_log(job: SyncRunningJob) -> None:
    job.log("in a process")
    raise ArithmeticError("no remainder")


def log_by_structlog() -> dict[str, Any]:
    """Logs by structlog, set up as an application does, and by logging; returns structlog's event."""
    kept: list[dict[str, Any]] = []

    def keep(logger: Any, method: str, event: EventDict) -> EventDict:
        kept.append(dict(event))
        raise structlog.DropEvent

    structlog.configure(processors=[job_fields, structlog.processors.add_log_level, keep])
    structlog.get_logger().info("charged", cents=5)
    logging.getLogger("app").info("charged by logging")
    return kept[0]
