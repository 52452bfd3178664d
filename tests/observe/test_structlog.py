"""structlog and the logging module: both see the job of the calling code as fields."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from structlog.typing import EventDict

from oxcart import Queue, Worker
from oxcart.observe.logs import JobContext, fields_here, job_fields
from tests.conftest import MakeQueue
from tests.observe.process_handlers import log_by_structlog
from tests.observe.spans import Spans, id_of, trace_of
from tests.signals import eventually


@pytest.fixture
def events() -> Iterator[list[EventDict]]:
    """What structlog logs, after the processor of ours."""
    kept: list[EventDict] = []

    def keep(logger: Any, method: str, event: EventDict) -> EventDict:
        kept.append(dict(event))
        raise structlog.DropEvent

    structlog.configure(processors=[job_fields, keep])
    yield kept
    structlog.reset_defaults()


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """What a handler of logging shows, with the filter of ours and structlog's formatter."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(JobContext())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.addHandler(handler)
    level = root.level
    root.setLevel(logging.INFO)

    class Lines(list[dict[str, Any]]):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            return iter([json.loads(line) for line in stream.getvalue().splitlines()])

    yield Lines()
    root.removeHandler(handler)
    root.setLevel(level)


def expected(worker: Worker, job: Any, name: str, **more: Any) -> dict[str, Any]:
    return {
        "worker_id": worker.id,
        "job_id": job.id,
        "queue": "q",
        "job_name": name,
        "attempt": 1,
        "correlation_id": "order-7",
        **more,
    }


async def test_structlog_has_the_fields_in_async_handlers_and_threads(
    queue: Queue, events: list[EventDict]
) -> None:
    @queue.job
    async def by_loop() -> None:
        structlog.get_logger().info("charged", cents=5)

    @queue.job
    def by_thread() -> None:
        structlog.get_logger().info("charged", cents=6, queue="my own")

    jobs = [await queue.add(name, {}, correlation_id="order-7") for name in ("by_loop", "by_thread")]
    worker = Worker(queue)
    async with worker.running():
        for job in jobs:
            await job.result(timeout=30)
    loop, thread = events
    assert loop == expected(worker, jobs[0], "by_loop", event="charged", cents=5)
    assert thread == expected(worker, jobs[1], "by_thread", event="charged", cents=6, queue="my own")
    structlog.get_logger().info("outside")
    assert events[-1] == {"event": "outside"}


async def test_structlog_in_a_process_has_the_fields(queue: Queue, lines: list[dict[str, Any]]) -> None:
    task = queue.job(run="process")(log_by_structlog)
    job = await task.using(correlation_id="order-7").enqueue()
    worker = Worker(queue)
    async with worker.running():
        said = await job.result(timeout=60)
    assert said == expected(worker, job, "log_by_structlog", event="charged", level="info", cents=5)
    # The process's records also reach the handlers of the worker, with the same fields.
    (line,) = [one for one in lines if one["event"] == "charged by logging"]
    assert {name: line[name] for name in said if name in line} == {
        name: value for name, value in said.items() if name in line
    } | {"event": "charged by logging"}
    assert line["correlation_id"] == "order-7"


async def test_logging_has_the_fields_in_handlers_and_in_lines_of_the_worker(
    queue: Queue, lines: list[dict[str, Any]]
) -> None:
    @queue.job(attempts=2, backoff=0.01)
    async def work() -> None:
        logging.getLogger("app").warning("low stock")
        raise OSError("away")

    job = await queue.add("work", {}, correlation_id="order-7")
    worker = Worker(queue)
    async with worker.running():
        await eventually(lambda: worker.processed == 2, "both attempts")
    (first, second) = [one for one in lines if one["event"] == "low stock"]
    wanted = expected(worker, job, "work")
    assert {name: first[name] for name in wanted} == wanted
    assert second["attempt"] == 2
    failures = [one for one in lines if one["logger"] == "oxcart.worker.failures"]
    assert [one["attempt"] for one in failures] == [1, 2]
    assert {name: failures[0][name] for name in wanted} == wanted
    started = next(one for one in lines if one["event"].endswith("started on q"))
    assert started["worker_id"] == worker.id
    assert {one["worker_id"] for one in lines} == {worker.id}


async def test_lines_name_the_trace(make_queue: MakeQueue, events: list[EventDict]) -> None:
    spans = Spans()
    queue = make_queue(tracing=spans.tracing)

    @queue.job
    async def work() -> None:
        structlog.get_logger().info("charged")

    job = await work.enqueue()
    async with Worker(queue).running():
        await job.result(timeout=30)
    run = spans.one("process q")
    assert events[0]["trace_id"] == f"{trace_of(run):032x}"
    assert events[0]["span_id"] == f"{id_of(run):016x}"


def test_code_outside_of_workers_has_no_fields() -> None:
    assert fields_here() == {}
