"""Reports to Sentry, with the real SDK and a transport that keeps the envelopes."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from oxcart import Queue, Retry, RunningJob, SyncRunningJob, Worker
from oxcart.errors import JobFailed
from oxcart.observe.sentry import SentryHook
from tests.observe.process_handlers import break_down_with_a_log
from tests.signals import eventually


class Envelopes(Transport):
    """Keeps the events of every envelope."""

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.events: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        event = envelope.get_event()
        if event is not None:
            self.events.append(dict(event))


@pytest.fixture
def sent() -> Iterator[Envelopes]:
    envelopes = Envelopes()
    sentry_sdk.init("https://key@sentry.invalid/1", transport=envelopes, traces_sample_rate=0)
    yield envelopes
    sentry_sdk.get_client().close()
    sentry_sdk.init()


async def ended(worker: Worker, *jobs: Any) -> None:
    async with worker.running():
        for job in jobs:
            with contextlib.suppress(JobFailed):
                await job.result(timeout=30)
        await eventually(lambda: worker.processed >= len(jobs), "all ends are reported")


def crumbs(event: dict[str, Any]) -> list[str]:
    return [one["message"] for one in event["breadcrumbs"]["values"] if one["category"] == "job.log"]


async def test_event_has_the_exception_the_tags_and_the_log_of_its_job(queue: Queue, sent: Envelopes) -> None:
    @queue.job(attempts=1)
    async def charge(job: RunningJob) -> None:
        await job.log("reading the card", "asking the bank")
        sentry_sdk.set_tag("bank", "north")
        raise LookupError("no such account")

    job = await queue.add("charge", {}, correlation_id="order-7", tags={"tenant": "acme"})
    worker = Worker(queue, observer=SentryHook())
    await ended(worker, job)
    (event,) = sent.events
    (error,) = event["exception"]["values"]
    assert (error["type"], error["value"]) == ("LookupError", "no such account")
    assert error["mechanism"] == {"type": "oxcart", "handled": False}
    assert error["stacktrace"]["frames"][-1]["function"] == "charge"
    assert event["tags"] == {
        "oxcart.queue": "q",
        "oxcart.job": "charge",
        "oxcart.job_id": job.id,
        "oxcart.attempt": "1",
        "oxcart.worker": worker.id,
        "oxcart.correlation_id": "order-7",
        "oxcart.category": "temporary",
        "bank": "north",
    }
    assert crumbs(event) == ["reading the card", "asking the bank"]
    assert event["level"] == "error"
    assert event["transaction"] == "q/charge"
    assert event["contexts"]["oxcart"]["tags"] == {"tenant": "acme"}
    assert event["contexts"]["oxcart"]["final"] is True


@pytest.mark.parametrize(
    ("each", "found"), [("final", [("2", "error")]), ("attempt", [("1", "warning"), ("2", "error")])]
)
async def test_one_event_per_final_failure_or_per_attempt(
    queue: Queue, sent: Envelopes, each: Any, found: list[tuple[str, str]]
) -> None:
    @queue.job(attempts=2, backoff=0.01)
    async def work() -> None:
        raise OSError("away")

    worker = Worker(queue, observer=SentryHook(each=each))
    await ended(worker, await work.enqueue())
    assert [(one["tags"]["oxcart.attempt"], one["level"]) for one in sent.events] == found


async def test_nothing_leaks_from_job_to_job(queue: Queue, sent: Envelopes) -> None:
    @queue.job(attempts=1)
    async def work(job: RunningJob, first: bool) -> None:
        if first:
            sentry_sdk.set_tag("only", "first")
            sentry_sdk.set_user({"id": "ada"})
            await job.log("of the first")
        raise OSError("away")

    await ended(
        Worker(queue, observer=SentryHook()), await work.enqueue(first=True), await work.enqueue(first=False)
    )
    one, other = sent.events
    assert (one["tags"]["only"], one["user"]) == ("first", {"id": "ada"})
    assert "only" not in other["tags"]
    assert "user" not in other
    assert crumbs(other) == []


async def test_threads_and_processes_have_tags_and_breadcrumbs(queue: Queue, sent: Envelopes) -> None:
    @queue.job(attempts=1)
    def in_thread(job: SyncRunningJob) -> None:
        job.log("in a thread")
        sentry_sdk.set_tag("by", "thread")
        raise OSError("away")

    in_process = queue.job(run="process", attempts=1)(break_down_with_a_log)
    await ended(Worker(queue, observer=SentryHook()), await in_thread.enqueue(), await in_process.enqueue())
    thread, process = sent.events
    assert crumbs(thread) == ["in a thread"]
    assert thread["tags"]["by"] == "thread"
    assert crumbs(process) == ["in a process"]
    assert [one["type"] for one in process["exception"]["values"]] == ["RemoteTraceback", "ArithmeticError"]


async def test_failure_without_an_exception_is_a_message(queue: Queue, sent: Envelopes) -> None:
    @queue.job(attempts=1)
    async def work() -> Retry:
        return Retry(reason="not today")

    await ended(Worker(queue, observer=SentryHook()), await work.enqueue())
    (event,) = sent.events
    assert event["message"] == "not today"
    assert event["tags"]["oxcart.job"] == "work"


async def test_completed_job_sends_nothing(
    queue: Queue, sent: Envelopes, caplog: pytest.LogCaptureFixture
) -> None:
    @queue.job
    async def work(job: RunningJob) -> None:
        await job.log("fine")

    await ended(Worker(queue, observer=SentryHook(each="attempt")), await work.enqueue())
    assert sent.events == []
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


def test_missing_package_names_the_extra() -> None:
    code = "import sys; sys.modules['sentry_sdk'] = None; import oxcart.observe.sentry"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'oxcart[sentry]'" in done.stderr
