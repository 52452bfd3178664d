"""Jobs cross between Node and Python: one side adds, the other runs, both read the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oxcart import Queue
from oxcart.model.errors import JobFailed
from tests.interop.obedient import LIMIT, obeying
from tests.nodes import NodeDriver

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="session")]

#: Kinds of jobs: data, options and the expected end.
JOBS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "plain": ({"result": {"n": 1}}, {}, {"returnvalue": {"n": 1}, "attemptsMade": 1}),
    "nothing": ({}, {}, {"returnvalue": None, "attemptsMade": 1}),
    "delayed": ({"result": "late"}, {"delay": 50}, {"returnvalue": "late", "attemptsMade": 1}),
    "prioritized": ({"result": 3}, {"priority": 3}, {"returnvalue": 3, "attemptsMade": 1}),
    "retried at once": (
        {"fail": 1, "result": True},
        {"attempts": 3},
        {"returnvalue": True, "attemptsMade": 2},
    ),
    "retried later": (
        {"fail": 2, "result": [1, 2]},
        {"attempts": 3, "backoff": {"type": "exponential", "delay": 10}},
        {"returnvalue": [1, 2], "attemptsMade": 3},
    ),
    "exhausted": (
        {"fail": 9, "message": "boom ✗"},
        {"attempts": 2, "backoff": {"type": "fixed", "delay": 10}},
        {"failedReason": "boom ✗", "attemptsMade": 2},
    ),
    "for good": (
        {"unrecoverable": True, "message": "no way"},
        {"attempts": 5},
        {"failedReason": "no way", "attemptsMade": 1},
    ),
}


def ours(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the same options under our names."""
    given = dict(options)
    if "delay" in given:
        given["delay"] = f"{given['delay']}ms"
    # Without this ours would wait a second; Node's default is to retry at once.
    given.setdefault("backoff", {"type": "fixed", "delay": 1})
    return given


async def read_by_both(node: NodeDriver, queue: Queue, job_id: str) -> dict[str, Any]:
    """Returns Node's view of an ended job after checking that ours is the same."""
    theirs: dict[str, Any] = await node.call("getJob", queue=queue.name, jobId=job_id)
    seen = await queue.jobs.get(job_id)
    assert seen is not None
    assert seen.return_value == theirs["returnvalue"]
    if theirs["returnvalue"] is None:
        assert seen.failed_reason == theirs.get("failedReason")
    assert seen.stacktrace == theirs["stacktrace"]
    assert seen.attempts_made == theirs["attemptsMade"]
    assert seen.attempts_started == theirs["attemptsStarted"]
    assert seen.data == theirs["data"]
    assert seen.worker_id == theirs["processedBy"]
    assert (seen.processed_on, seen.finished_on) == (theirs["processedOn"], theirs["finishedOn"])
    assert await queue.jobs.state(job_id) == await node.call("getState", queue=queue.name, jobId=job_id)
    return theirs


async def check_end(node: NodeDriver, queue: Queue, job_id: str, end: dict[str, Any], worker: str) -> None:
    theirs = await read_by_both(node, queue, job_id)
    assert {name: theirs.get(name) for name in end} == end
    assert theirs["processedBy"] == worker
    failed = "failedReason" in end
    assert await queue.jobs.state(job_id) == ("failed" if failed else "completed")
    # Each failed attempt left a stack trace with its reason.
    assert len(theirs["stacktrace"]) == end["attemptsMade"] - (0 if failed else 1)
    assert all(theirs["data"].get("message", "failed") in trace for trace in theirs["stacktrace"])


async def test_node_adds_and_we_run(node: NodeDriver, queue: Queue) -> None:
    async with obeying(queue, name="ox", concurrency=4) as worker:
        ids = {}
        for kind, (data, options, _) in JOBS.items():
            ids[kind] = await node.call("add", queue=queue.name, name=kind, data=data, opts=options)
        await _ended(queue, *ids.values())
    for kind, job_id in ids.items():
        end = JOBS[kind][2]
        await check_end(node, queue, job_id, end, "ox")
        assert [attempt for run, attempt in worker.runs if run == job_id] == list(range(end["attemptsMade"]))


async def test_we_add_and_node_runs(node: NodeDriver, queue: Queue) -> None:
    options = {"name": "nd", "concurrency": 4}
    await node.call("workerStart", handle=queue.name, queue=queue.name, options=options)
    try:
        ids = {}
        for kind, (data, given, _) in JOBS.items():
            ids[kind] = (await queue.add(kind, data, **ours(given))).id
        await _ended(queue, *ids.values())
    finally:
        stats = await node.call("workerStop", handle=queue.name)
    assert stats["errors"] == []
    for kind, job_id in ids.items():
        end = JOBS[kind][2]
        await check_end(node, queue, job_id, end, "nd")
        runs = [run["attempt"] for run in stats["runs"] if run["id"] == job_id]
        assert runs == list(range(end["attemptsMade"]))


async def test_our_result_waits_for_nodes_worker_and_node_for_ours(node: NodeDriver, queue: Queue) -> None:
    await node.call("workerStart", handle=queue.name, queue=queue.name)
    # Removed on completion: only the event has the result.
    job = await queue.add("j", {"delay": 20, "result": "of node"}, remove_on_complete=True)
    assert await job.result(LIMIT) == "of node"
    await node.call("workerStop", handle=queue.name)

    await node.call("eventsStart", handle=queue.name, queue=queue.name)
    async with obeying(queue):
        job_id = await node.call("add", queue=queue.name, name="j", data={"delay": 20, "result": "of ours"})
        waiting = node.call(
            "waitUntilFinished", queue=queue.name, jobId=job_id, handle=queue.name, timeout=LIMIT * 1000
        )
        assert await waiting == "of ours"
    await node.call("eventsStop", handle=queue.name)


async def test_order_is_the_same_for_both(node: NodeDriver, queue: Queue) -> None:
    """First the ready list (last-in-first-out jobs in front), then by priority, first come first served."""
    steps: list[tuple[str, dict[str, Any]]] = [
        ("node", {}),
        ("ours", {"priority": 2}),
        ("ours", {}),
        ("node", {"priority": 1}),
        ("node", {"lifo": True}),
        ("ours", {"lifo": True}),
        ("node", {"priority": 2}),
        ("ours", {"priority": 1}),
    ]
    added = []
    for n, (by, options) in enumerate(steps):
        if by == "node":
            added.append(await node.call("add", queue=queue.name, name=str(n), data={}, opts=options))
        else:
            added.append((await queue.add(str(n), {}, **options)).id)
    expected = [added[n] for n in (5, 4, 0, 2, 3, 7, 1, 6)]
    half = len(expected) // 2
    for job_id in expected[:half]:
        claim = await node.call("claim", queue=queue.name, token="t")
        assert claim["job"]["id"] == job_id
    async with obeying(queue, recover=False) as worker:
        await _ended(queue, expected[-1])
    assert [job_id for job_id, _ in worker.runs] == expected[half:]


async def _ended(queue: Queue, *job_ids: str) -> None:
    """Wait until the jobs have completed or failed."""
    results = [queue.jobs.handle(job_id).result(LIMIT) for job_id in job_ids]
    for result in await asyncio.gather(*results, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, JobFailed):
            raise result
