"""Node's workers and ours on one queue with producers of both.

`OXCART_FLEET=100000` sets the number of jobs.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis

from oxcart import Queue
from oxcart.events import QueueEvents
from tests.interop import wire
from tests.interop.lifecycle import NodeAlone, live
from tests.interop.obedient import obeying
from tests.nodes import NodeDriver
from tests.servers import ValkeyServer

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="session")]

JOBS = int(os.environ.get("OXCART_FLEET", "5000"))
SEED = 562
#: Seconds for all jobs to end; about ten times what an idle machine takes.
LIMIT = 60 + JOBS / 200
CHUNK = 250


@dataclass
class Plan:
    """A job and its expected end, whichever side runs it."""

    name: str
    data: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    attempts: int = 1
    fails: bool = False

    @property
    def failing_runs(self) -> int:
        return self.attempts if self.fails else self.attempts - 1


def make_plan(rand: random.Random, number: int) -> Plan:
    """One of many kinds, in fixed shares."""
    plan = Plan(f"job-{number % 7}", {"n": number, "delay": rand.randrange(4), "result": {"n": number}})
    kind = rand.random()
    if kind < 0.15:  # fails once or twice, then succeeds
        plan.data["fail"] = rand.randint(1, 2)
        plan.options["attempts"] = 3
        plan.attempts = plan.data["fail"] + 1
    elif kind < 0.22:  # fails until no attempt is left
        plan.data["fail"] = 99
        plan.options["attempts"] = plan.attempts = rand.randint(1, 3)
        plan.fails = True
    elif kind < 0.26:  # fails for good at once
        plan.data["unrecoverable"] = True
        plan.options["attempts"] = 4
        plan.fails = True
    if "attempts" in plan.options and rand.random() < 0.7:  # otherwise it is retried at once
        plan.options["backoff"] = {
            "type": rand.choice(["fixed", "exponential"]),
            "delay": rand.choice([1, 20, 100]),
        }
    place = rand.random()
    if place < 0.15:
        plan.options["delay"] = rand.randint(1, 1500)
    if 0.10 < place < 0.35:
        plan.options["priority"] = rand.randint(1, 9)
    elif place > 0.95:
        plan.options["lifo"] = True
    return plan


def ours(plan: Plan) -> tuple[str, Any, dict[str, Any]]:
    # We always write a policy; the nearest to Node's "at once" is a millisecond.
    options = {"attempts": 1, "backoff": {"type": "fixed", "delay": 1}, **plan.options}
    if "delay" in options:
        options["delay"] = f"{options['delay']}ms"
    return plan.name, plan.data, options


async def produce(node: NodeDriver, queue: Queue, plans: list[Plan]) -> dict[str, Plan]:
    """Both kinds of producer at once, each with every other chunk."""

    async def by_node(part: list[Plan]) -> list[str]:
        jobs = [{"name": plan.name, "data": plan.data, "opts": plan.options} for plan in part]
        return list(await node.call("addBulk", queue=queue.name, jobs=jobs))

    async def by_us(part: list[Plan]) -> list[str]:
        return [job.id for job in await queue.add_many(ours(plan) for plan in part)]

    chunks = [plans[start : start + CHUNK] for start in range(0, len(plans), CHUNK)]
    adding = [(by_node if n % 2 else by_us)(chunk) for n, chunk in enumerate(chunks)]
    ids = [job_id for chunk in await asyncio.gather(*adding) for job_id in chunk]
    return dict(zip(ids, plans, strict=True))


async def watch(events: QueueEvents, client: redis.Redis, base: str, total: int) -> Counter[str]:
    """Count the ends of each job until all have ended; check the types of all keys ten times meanwhile."""
    ends: Counter[str] = Counter()
    marks = [total * tenth // 10 for tenth in range(1, 10)]
    async with asyncio.timeout(LIMIT):
        while len(ends) < total:
            for event in await events.read():
                if event.name in ("completed", "failed"):
                    ends[f"{event.job_id}"] += 1
            if marks and len(ends) >= marks[0]:
                marks.pop(0)
                wrong = await asyncio.to_thread(wire.wrong_types, client, base)
                assert wrong == {}
    return ends


@pytest.mark.timeout(LIMIT + 60)
async def test_both_kinds_of_worker_share_a_queue(
    node: NodeDriver, queue: Queue, server: ValkeyServer
) -> None:
    base, client = f"bull:{queue.name}", server.client()
    alone = NodeAlone(node, f"{queue.name}-node")
    await live(alone)
    await alone.add("retried at once", {"fail": 1}, attempts=2)
    await alone.work(1)
    shapes = wire.event_shapes(client, f"{base}-node")
    rand = random.Random(SEED)
    plans = [make_plan(rand, number) for number in range(JOBS)]
    await node.call("openQueue", queue=queue.name, options={"streams": {"events": {"maxLen": 100 * JOBS}}})
    listening: dict[str, Any] = {"handle": queue.name, "queue": queue.name, "from": "0"}
    await node.call("eventsStart", **listening)
    await node.call(
        "workerStart", handle=queue.name, queue=queue.name, options={"name": "nd", "concurrency": 20}
    )
    try:
        async with queue.events("0") as events, obeying(queue, name="ox", concurrency=20) as worker:
            producing = asyncio.create_task(produce(node, queue, plans))
            ends = await watch(events, client, base, JOBS)
            jobs = await producing
    finally:
        stats = await node.call("workerStop", handle=queue.name)

    # Every job ended once, none was lost, and each is only in its own set.
    assert set(ends.values()) == {1}
    assert ends.keys() == jobs.keys()
    completed = {job_id for job_id, plan in jobs.items() if not plan.fails}
    failed = jobs.keys() - completed
    assert set(client.zrange(f"{base}:completed", 0, -1)) == completed
    assert set(client.zrange(f"{base}:failed", 0, -1)) == failed
    counts = await node.call("getJobCounts", queue=queue.name)
    assert {state: count for state, count in counts.items() if count} == {
        "completed": len(completed),
        "failed": len(failed),
    }
    assert {state: count for state, count in (await queue.counts()).items() if count} == {
        "completed": len(completed),
        "failed": len(failed),
    }

    # Every job ran exactly as often as planned: no worker ran a job that another held.
    assert stats["errors"] == []
    by_us = Counter(job_id for job_id, _ in worker.runs)
    by_node = Counter(run["id"] for run in stats["runs"])
    assert by_us + by_node == {job_id: plan.attempts for job_id, plan in jobs.items()}

    # Both got a share, and neither failed more of it than the jobs asked for.
    runs = {"ours": by_us.total(), "node": by_node.total()}
    print(f"runs: {runs}")
    assert min(runs.values()) >= sum(runs.values()) / 20, runs
    errors = {"ours": len(worker.failed), "node": len(stats["failed"])}
    assert sum(errors.values()) == sum(plan.failing_runs for plan in plans)
    rates = {side: errors[side] / runs[side] for side in runs}
    print(f"error rates: {rates}")
    assert abs(rates["ours"] - rates["node"]) < 0.1, rates

    # Each hash has the planned values, whichever side ran the job.
    pipe = client.pipeline(transaction=False)
    for job_id in jobs:
        pipe.hgetall(f"{base}:{job_id}")
    for (job_id, plan), fields in zip(jobs.items(), pipe.execute(), strict=True):
        assert (fields["ats"], fields["atm"]) == (str(plan.attempts),) * 2, job_id
        assert fields["pb"] in ("ox", "nd")
        assert ("returnvalue" in fields) is not plan.fails

    # Node's listener saw the stream entry by entry (except `drained`, which has no fields).
    stream = [
        (entry["event"], entry.get("jobId"))
        for entry in wire.entries(client, base)
        if entry["event"] != "drained"
    ]
    seen = await node.call("eventsWait", handle=queue.name, count=len(stream))
    await node.call("eventsStop", handle=queue.name)
    assert [(one["event"], one.get("jobId")) for one in seen] == stream
    assert wire.wrong_types(client, base) == {}

    # No event has fields that Node alone would not give it.
    for name, found in wire.event_shapes(client, base).items():
        assert found <= shapes[name]
