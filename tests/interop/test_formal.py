"""The formal model beside Node: its workers' ends are inferred, and our fields do not disturb it."""

from __future__ import annotations

import pytest

from oxcart import Queue
from oxcart.broker.port import Ask
from oxcart.model.state import State
from tests.formal.test_history import check
from tests.interop.obedient import LIMIT, obeying
from tests.nodes import NodeDriver
from tests.signals import eventually

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="session")]


async def has_ended(queue: Queue, job_id: str) -> bool:
    job = await queue.jobs.get(job_id)
    return job is not None and job.finished_on is not None


async def test_history_of_a_node_worker_is_inferred(node: NodeDriver, queue: Queue) -> None:
    await node.call("workerStart", handle=queue.name, queue=queue.name, options={"name": "nd"})
    try:
        fine = await queue.add("j", {"result": 1}, history=True, idempotency_key="k", lifetime="1h")
        bad = await queue.add(
            "j", {"fail": 9}, history=True, attempts=2, backoff={"type": "fixed", "delay": 1}
        )
        for handle in (fine, bad):
            await eventually(lambda one=handle.id: has_ended(queue, one), "Node has run it", LIMIT)  # type: ignore[misc]
    finally:
        stats = await node.call("workerStop", handle=queue.name)
    assert stats["errors"] == []
    job = await fine.get()
    check(job)
    assert job.state is State.COMPLETED
    assert [(one.target, one.inferred) for one in job.transitions] == [
        (State.SCHEDULED, True),
        (State.RUNNING, True),
        (State.COMPLETED, True),
    ]
    (only,) = job.past_attempts
    assert (only.worker, only.outcome, only.inferred, only.id) == ("nd", "completed", True, f"{fine.id}/1")
    assert (await queue.add("j", idempotency_key="k")).duplicate
    job = await bad.get()
    check(job)
    assert (job.state, job.attempts_made) == (State.DEAD_LETTER, 2)
    assert [one.number for one in job.past_attempts] == [1, 2]


async def test_a_job_of_node_has_all_nine_states_to_be_in(node: NodeDriver, queue: Queue) -> None:
    """Node adds and runs all the jobs; only the cancellation is ours."""

    async def add(data: dict[str, object] | None = None, **opts: object) -> str:
        added: str = await node.call("add", queue=queue.name, name="j", data=data or {}, opts=opts)
        return added

    async def states() -> dict[State, State | None]:
        found = await queue.jobs.get_many(list(ids.values()))
        return {wanted: None if job is None else job.state for wanted, job in zip(ids, found, strict=True)}

    ids = {
        State.RUNNING: await add({"hold": True}),
        State.COMPLETED: await add({"result": 1}),
        State.FAILED: await add({"unrecoverable": True}, attempts=3),
        State.RETRYING: await add({"fail": 9}, attempts=3, backoff={"type": "fixed", "delay": 3_600_000}),
        State.DEAD_LETTER: await add({"fail": 9}, attempts=1),
        State.DELAYED: await add(delay=60_000),
        State.CANCELLED: await add(delay=60_000),
    }
    child = {"name": "c", "queueName": queue.name, "opts": {"delay": 60_000}}
    flow = {"name": "p", "queueName": queue.name, "children": [child]}
    ids[State.PENDING] = (await node.call("addFlow", flow=flow))["id"]
    await queue.jobs.cancel(ids[State.CANCELLED], "withdrawn")
    await node.call("workerStart", handle=queue.name, queue=queue.name, options={"concurrency": 5})
    try:
        await node.call("workerWait", handle=queue.name, runs=5, finished=3, limit=LIMIT)
        await eventually(lambda: has_failed(queue, ids[State.RETRYING]), "Node puts it off", LIMIT)
        await node.call("pause", queue=queue.name)
        ids[State.SCHEDULED] = await add()
        assert await states() == {state: state for state in State}
        for job in await queue.jobs.get_many(list(ids.values())):
            assert job is not None
            check(job)
            assert not job.options.history
    finally:
        await node.call("workerRelease", handle=queue.name)
        await node.call("workerStop", handle=queue.name)


async def has_failed(queue: Queue, job_id: str) -> bool:
    job = await queue.jobs.get(job_id)
    return job is not None and job.attempts_made > 0


async def test_history_continues_when_oxcart_and_node_alternate(node: NodeDriver, queue: Queue) -> None:
    """Our worker runs a job that Node retries: its history continues, and the gap is filled."""
    handle = await queue.add(
        "j", {"fail": 1}, history=True, attempts=3, backoff={"type": "fixed", "delay": 1}
    )
    await node.call("workerStart", handle=queue.name, queue=queue.name, options={"name": "nd"})
    try:
        await eventually(lambda: has_ended(queue, handle.id), "Node has run it", LIMIT)
    finally:
        await node.call("workerStop", handle=queue.name)
    await handle.retry()
    async with obeying(queue, name="ox"):
        await eventually(lambda: has_ended(queue, handle.id), "we have run it", LIMIT)
    job = await handle.get()
    check(job)
    assert job.state is State.COMPLETED
    assert [one.worker for one in job.past_attempts if not one.inferred] == ["ox"]
    assert job.past_attempts[0].inferred


async def test_a_job_that_node_promoted_shows_no_time_in_the_future(node: NodeDriver, queue: Queue) -> None:
    """Node does not record when a job became ready: the time is unset, then that of its start."""
    handle = await queue.add("j", delay="1h")
    await node.call("promote", queue=queue.name, jobId=handle.id)
    job = await handle.get()
    assert (job.state, job.scheduled_at, job.updated_at) == (State.SCHEDULED, None, job.created_at)
    assert len((await queue._core.broker.claim(Ask(1))).jobs) == 1
    job = await handle.get()
    assert job.state == State.RUNNING
    assert job.scheduled_at == job.started_at == job.updated_at
