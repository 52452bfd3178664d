"""The times of a job: each is the time of a transition by the server's clock, and none decreases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oxcart import Graph
from oxcart.broker.port import Ask, ClaimedJob, Outcome, OutcomeKind
from oxcart.model.job import Job
from oxcart.model.state import State
from tests.conformance.conftest import Bench

HOUR = timedelta(hours=1)
MS = timedelta(milliseconds=1)


async def server_time(bench: Bench) -> datetime:
    return datetime.fromtimestamp(await bench.broker.now() / 1000, UTC)


async def look(bench: Bench, job_id: str) -> Job:
    (job,) = await bench.broker.look([job_id])
    assert job is not None
    return job


async def claim(bench: Bench) -> ClaimedJob:
    (job,) = (await bench.broker.claim(Ask(1, worker="w1"))).jobs
    return job


async def end(bench: Bench, job: ClaimedJob, kind: str, **fields: Any) -> None:
    outcome = Outcome(OutcomeKind(kind), job.id, job.token, job.starts, **fields)
    codes, _ = await bench.broker.finish([outcome], Ask(0, worker="w1"))
    assert codes == [1]


async def test_a_promoted_job_became_ready_when_it_was_promoted(bench: Bench) -> None:
    job_id = await bench.add(delay="1h")
    assert (await look(bench, job_id)).scheduled_at is None
    before = await server_time(bench)
    await bench.broker.promote_job(job_id)
    job, after = await look(bench, job_id), await server_time(bench)
    assert job.state == State.SCHEDULED
    assert job.scheduled_at is not None
    assert before - MS <= job.scheduled_at == job.updated_at <= after + MS
    await claim(bench)
    job = await look(bench, job_id)
    assert job.scheduled_at is not None
    assert job.started_at is not None
    assert job.created_at <= job.scheduled_at <= job.started_at == job.updated_at


async def test_a_job_became_ready_when_its_delay_had_passed(bench: Bench) -> None:
    job_id = await bench.add(delay="50ms")
    while not (await bench.broker.promote())[0]:
        pass
    job = await look(bench, job_id)
    assert job.state == State.SCHEDULED
    assert job.scheduled_at == job.updated_at >= job.created_at + 50 * MS


async def test_a_retrying_job_was_updated_when_its_attempt_failed(bench: Bench) -> None:
    job_id = await bench.add()
    claimed = await claim(bench)
    running = await look(bench, job_id)
    while await server_time(bench) <= running.updated_at + 2 * MS:  # a client knows the time to about 1 ms
        pass
    before = await server_time(bench)
    await end(bench, claimed, "d", value=b"no", stack=b"[]", delay_ms=3_600_000)
    job, after = await look(bench, job_id), await server_time(bench)
    assert job.state == State.RETRYING
    assert job.started_at is not None
    assert before - MS <= job.updated_at <= after + MS
    assert job.started_at < job.updated_at
    await bench.broker.promote_job(job_id)
    again = await look(bench, job_id)
    assert again.state == State.SCHEDULED
    assert again.scheduled_at == again.updated_at >= job.updated_at


@pytest.mark.parametrize("kind", ["r", "w"])
async def test_job_that_goes_back_is_ready_from_then_on(bench: Bench, kind: str) -> None:
    job_id = await bench.add()
    claimed = await claim(bench)
    running = await look(bench, job_id)
    while await server_time(bench) <= running.updated_at + 2 * MS:  # a client knows the time to about 1 ms
        pass
    more = {"value": b"no", "stack": b"[]"} if kind == "r" else {}
    await end(bench, claimed, kind, **more)
    job = await look(bench, job_id)
    assert job.state == State.SCHEDULED
    assert job.scheduled_at == job.updated_at > running.updated_at


async def test_a_dependent_became_ready_when_it_was_released(bench: Bench) -> None:
    if bench.queue._core.protocol == "bridge":
        first = await bench.add()
        second = await bench.add(after=[first])
    else:
        bench.venue.needs("graphs")
        graph = Graph(bench.queue)
        one = graph.job("email")
        graph.job("email", after=[one])
        first, second = [handle.id for handle in await graph.add()]
    assert (await look(bench, second)).state == State.PENDING
    assert (await look(bench, second)).scheduled_at is None
    claimed = await claim(bench)
    assert claimed.id == first
    while await server_time(bench) <= (await look(bench, second)).created_at + MS:
        pass
    before = await server_time(bench)
    await end(bench, claimed, "c", value=b"1")
    await bench.broker.promote()
    job, after = await look(bench, second), await server_time(bench)
    assert job.state == State.SCHEDULED
    assert job.scheduled_at is not None
    assert before - MS <= job.scheduled_at == job.updated_at <= after + MS
