"""Logs carry the worker and the job they belong to."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from oxcart import Queue, Worker
from oxcart.model.errors import JobFailed
from oxcart.observe import logs
from tests.chaos.proxy import Proxy
from tests.servers import ValkeyServer
from tests.signals import eventually

log = logging.getLogger("app")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:] = before
    root.setLevel(level)


def records(stream: io.StringIO, logger: str = "app") -> list[dict[str, Any]]:
    found = (json.loads(line) for line in stream.getvalue().splitlines())
    return [record for record in found if record["logger"] == logger]


class TestJson:
    def test_a_record_is_one_line(self, stream: io.StringIO) -> None:
        logs.configure("json", stream=stream, worker_id="w1")
        log.info("hello %s\nworld", "big", extra={"order": 7})
        (record,) = records(stream)
        assert record.pop("time").endswith("Z")
        assert record == {
            "level": "info",
            "logger": "app",
            "message": "hello big\nworld",
            "worker_id": "w1",
            "order": 7,
        }

    def test_an_exception_is_shown_with_its_stack(self, stream: io.StringIO) -> None:
        logs.configure("json", stream=stream)
        try:
            raise ValueError("no")
        except ValueError:
            log.exception("oh")
        (record,) = records(stream)
        assert record["exception"].startswith("Traceback")
        assert record["exception"].endswith("ValueError: no")

    @pytest.mark.parametrize("strange", [object(), {1: {2}}, float("nan"), "\ud800", b"\xff"])
    def test_no_line_is_lost_to_its_extras(self, stream: io.StringIO, strange: Any) -> None:
        logs.configure("json", stream=stream)
        log.info("hello", extra={"strange": strange})
        (record,) = records(stream)
        assert "hello" in record["message"]
        assert "strange" in record

    def test_levels_are_kept(self, stream: io.StringIO) -> None:
        logs.configure("json", "WARNING", stream=stream)
        log.info("quiet")
        assert records(stream) == []


class TestText:
    def test_job_and_worker_stand_before_the_message(self, stream: io.StringIO) -> None:
        logs.configure("text", stream=stream)
        extra = {"worker_id": "w1", "queue": "mail", "job_id": "7", "job_name": "send", "attempt": 2}
        log.warning("careful", extra=extra)
        assert stream.getvalue().endswith(" WARNING app [w1] [mail/7 send #2] careful\n")

    def test_without_a_job_there_is_no_bracket(self, stream: io.StringIO) -> None:
        logs.configure("text", stream=stream)
        log.info("plain")
        assert stream.getvalue().endswith(" INFO    app plain\n")


async def test_handlers_log_their_job(stream: io.StringIO) -> None:
    with ValkeyServer() as server:
        async with Queue("logged", url=server.url) as queue:

            @queue.job
            async def in_loop() -> None:
                log.info("from the loop")

            @queue.job
            def in_thread() -> None:
                log.info("from a thread")

            worker = Worker(queue, concurrency=2)
            logs.configure("json", stream=stream, worker_id=worker.id)
            async with worker.running():
                jobs = [await in_loop.enqueue(), await in_thread.enqueue()]
                for job in jobs:
                    await job.result(60)
                log.info("outside")
    found = {record["message"]: record for record in records(stream)}
    for job, message in zip(jobs, ("from the loop", "from a thread"), strict=True):
        record = found[message]
        assert record["worker_id"] == worker.id
        assert (record["job_id"], record["queue"], record["job_name"]) == (job.id, "logged", job.name)
        assert record["attempt"] == 1
    assert "job_id" not in found["outside"]
    assert found["outside"]["worker_id"] == worker.id


async def test_the_worker_logs_a_failure_with_the_facts_of_its_job_as_fields(stream: io.StringIO) -> None:
    logs.configure("json", stream=stream)
    with ValkeyServer() as server:
        async with Queue("q", url=server.url) as queue:

            @queue.job
            async def charge() -> None:
                raise RuntimeError("the bank is closed")

            async with Worker(queue, name="cashier").running() as worker:
                options: Any = {"attempts": 2, "backoff": 0.01, "correlation_id": "order-7"}
                handle = await queue.add("charge", **options)
                with pytest.raises(JobFailed):
                    await handle.result(60)
    failures = [one for one in records(stream, "oxcart.worker.failures") if "failed" in one["message"]]
    assert [one["attempt"] for one in failures] == [1, 2]
    for one in failures:
        assert {name: one[name] for name in ("queue", "job_id", "job_name", "correlation_id")} == {
            "queue": "q",
            "job_id": handle.id,
            "job_name": "charge",
            "correlation_id": "order-7",
        }
        assert one["worker_id"] == worker.id
        assert one["traceback"].startswith("Traceback")
        assert one["traceback"].endswith("RuntimeError: the bank is closed")


async def test_a_failed_renewal_names_its_job(stream: io.StringIO) -> None:
    logs.configure("json", stream=stream)
    ended = asyncio.Event()

    def renewals() -> list[dict[str, Any]]:
        return [one for one in records(stream, "oxcart.leases") if "could not renew" in one["message"]]

    with ValkeyServer() as server:
        async with Proxy(server.port) as proxy, Queue("q", url=proxy.url) as queue:

            @queue.job
            async def charge() -> None:
                await ended.wait()

            async with Worker(queue, lock_duration=60, renew_every=0.3).running():
                handle = await queue.add("charge", correlation_id="order-7")
                await eventually(lambda: proxy.calls["renew"], "the renewer renews")
                await proxy.down()
                await eventually(renewals, "a renewal fails")
                await proxy.up()
                ended.set()
                await handle.result(60)
    one = renewals()[0]
    assert f"could not renew the lease of job {handle.id} (attempt 1): " in one["message"]
    assert (one["queue"], one["job_id"], one["job_name"]) == ("q", handle.id, "charge")
    assert (one["attempt"], one["correlation_id"]) == (1, "order-7")
