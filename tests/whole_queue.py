"""A queue with every kind of key that Oxcart stores, for tests of its removal."""

from __future__ import annotations

from typing import Any

from oxcart import Graph, PermanentError, Queue, RunningJob, Target, Worker
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.scripts import load
from oxcart.model.target import Abilities
from tests.signals import eventually

GPU = Target(capabilities="gpu")


async def fill(queue: Queue, other: Queue) -> int:
    """Fills a queue; ``other`` is one in the same slot, with a job that waits for one of the queue.

    Returns:
        How many jobs the queue and its lanes have.
    """

    async def run(job: RunningJob) -> Any:
        await job.log("seen")
        if job.name == "bad":
            raise PermanentError("no")
        return 1

    queue.fallback(run)
    await queue.limits.set_type_limit("kind", concurrent=1, per_minute=100)
    await queue.limits.set_key_limit(per_minute=100)
    broker = queue._core.broker
    assert isinstance(broker, BullMQBroker)
    now = broker.clock()
    await broker.caller.again(
        load("attach"), broker.keys.meta(), "pipeline", now + 3_600_000, 50_000, now, "mark"
    )
    await queue.add("gone", remove_on_complete=True, idempotency_key="k1")
    await queue.add("once", idempotency_key="k2", lifetime="1h", limit_key="tenant")
    await queue.add("throttled", deduplication={"id": "d1", "ttl": "1h"}, remove_on_complete=True)
    await queue.add("kind")
    await queue.add("bad")
    await queue.add("routed", target=GPU, idempotency_key="k3", lifetime="1h")
    async with Worker(queue, concurrency=5, abilities=Abilities(capabilities=("gpu",))).running():
        await eventually(lambda: _ended(queue, 4), "the first jobs have ended")
    await queue.add("later", delay="1h", lifetime="2h")
    await queue.add("ranked", priority=3)
    await queue.add("routed", target=GPU, job_id="mine", delay="1h")
    await queue.add("routed", target=Target(region="{eu}"))
    await queue.schedules.upsert("daily", every="1h", name="tick")
    graph = Graph(queue)
    first = graph.job("first")
    graph.job("second", after=[first])
    graph.job("elsewhere", after=[first], queue=other)
    await graph.add()
    return sum((await queue.counts()).values())


async def _ended(queue: Queue, count: int) -> bool:
    counts = await queue.counts()
    return counts["completed"] + counts["failed"] >= count
