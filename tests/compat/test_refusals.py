"""Errors of the drop-in are instances of both packages' classes, and failures reach the listeners."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from types import ModuleType
from typing import Any

import pytest
import redis

from oxcart.compat.bullmq import Job, Queue, Worker
from oxcart.compat.bullmq.error_code import ErrorCode
from oxcart.model.errors import PayloadError, ValidationError
from tests.compat.conftest import Make, reaches, soon


async def fail(job: Job, token: str) -> None:
    raise ValueError("no luck")


@pytest.mark.parametrize(
    ("data", "kind"), [(object(), TypeError), ({"x": [1j]}, TypeError), (float("nan"), ValueError)]
)
async def test_data_that_is_no_json_is_refused_as_there_and_as_here(
    make: Make, store: redis.Redis, data: Any, kind: type[Exception]
) -> None:
    queue = make(Queue, "q")
    with pytest.raises(kind) as there:
        json.dumps(data, allow_nan=False)
    for adding in (queue.add("n", data), queue.upsertJobScheduler("s", {"every": 1000}, "n", data)):
        with pytest.raises(PayloadError) as caught:
            await adding
        assert isinstance(caught.value, kind)
        assert str(caught.value) == str(there.value)
    assert store.dbsize() == 0, "nothing was written"


async def test_a_name_that_is_no_text_is_refused_as_there_and_as_here(make: Make) -> None:
    queue = make(Queue, "q")
    for adding in (queue.add(object(), {}), queue.upsertJobScheduler("s", {"every": 1000}, object())):
        with pytest.raises(ValidationError, match="job name must be a text") as caught:
            await adding
        assert isinstance(caught.value, TypeError)


async def test_a_bad_cron_expression_is_one_of_croniters_errors_where_that_is_imported(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    class CroniterBadCronError(ValueError):
        pass

    queue = make(Queue, "q")
    with pytest.raises(ValidationError, match="cron must be"):
        await queue.upsertJobScheduler("s", {"pattern": "every now and then"})
    croniter = ModuleType("croniter")
    croniter.CroniterBadCronError = CroniterBadCronError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "croniter", croniter)
    with pytest.raises(CroniterBadCronError, match="cron must be") as caught:
        await queue.upsertJobScheduler("s", {"pattern": "every now and then"})
    assert isinstance(caught.value, ValidationError)
    with pytest.raises(ValidationError, match="tz must be") as other:
        await queue.upsertJobScheduler("s", {"pattern": "* * * * *", "tz": "Nowhere/Land"})
    assert not isinstance(other.value, CroniterBadCronError)


async def test_a_refused_call_has_the_code_of_the_script(make: Make) -> None:
    queue = make(Queue, "q")
    job = await queue.add("n", {})
    with pytest.raises(TypeError) as caught:
        await job.promote()
    assert ErrorCode(caught.value.code) is ErrorCode.JobNotInState  # type: ignore[attr-defined]


async def test_a_result_that_is_no_json_fails_the_job_in_the_same_words(make: Make) -> None:
    async def strange(job: Job, token: str) -> Any:
        return object()

    queue = make(Queue, "q")
    make(Worker, "q", strange)
    job = await queue.add("n", {})
    await reaches(job, "failed")
    assert (await queue.getJob(job.id)).failedReason == "Object of type object is not JSON serializable"


async def test_a_failed_job_is_a_line_in_the_log_where_logging_is_configured(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    queue = make(Queue, "q")
    make(Worker, "q", fail)
    with caplog.at_level(logging.WARNING):
        job = await queue.add("n", {})
        await reaches(job, "failed")
        await soon(lambda: "failed for good" in caplog.text)
    (line,) = (record for record in caplog.records if "failed for good" in record.getMessage())
    assert (line.name, vars(line)["job_id"]) == ("oxcart.worker.failures", job.id)


async def test_processing_ends_with_the_jobs(make: Make) -> None:
    go = asyncio.Event()

    async def wait(job: Job, token: str) -> None:
        await go.wait()

    queue = make(Queue, "q")
    worker = make(Worker, "q", wait, concurrency=3)
    await queue.addBulk([{"name": "n", "data": {}}] * 3)
    await soon(lambda: len(worker.jobs) == 3)
    running = worker.processing
    assert (len(running), any(one.done() for one in running)) == (3, False)
    go.set()
    await asyncio.wait_for(asyncio.gather(*running), 20)
    assert worker.processing == set()
