"""A client that knows an old layout reaches every partition, and its jobs are found by others."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
import redis

from oxcart import Queue, Worker
from oxcart.broker.partitioned.spread import Spread
from oxcart.model.partitions import partition_of
from tests.conftest import MakeQueue

LIMIT = 60.0


def key_of(number: int, size: int) -> str:
    """Returns a key whose jobs go to a partition."""
    return next(f"k{n}" for n in range(10_000) if partition_of(f"k{n}", size) == number)


def spread_of(queue: Queue) -> Spread:
    spread = queue._core.broker.partitions
    assert isinstance(spread, Spread)
    return spread


async def with_layout(make_queue: MakeQueue, size: int) -> Queue:
    """Returns a client that has just read a layout of this size."""
    queue = make_queue("events", partitions=size)
    assert (await queue.partitions.layout()).size == size
    return queue


class Grown(msgspec.Struct):
    """A queue that grew from two partitions to eight, with a job in each.

    Attributes:
        queue: A client that knows the new layout.
        jobs: The handles of the jobs, by the numbers of their partitions.
        unaware: Clients that know the old one.
    """

    queue: Queue
    jobs: list[Any]
    unaware: list[Queue]

    def old(self) -> Queue:
        """Returns another client that knows the old layout."""
        queue = self.unaware.pop()
        assert spread_of(queue).layout.served == 2
        return queue


@pytest.fixture
async def grown(make_queue: MakeQueue) -> Grown:
    unaware = [await with_layout(make_queue, 2) for _ in range(8)]
    queue = make_queue("events", partitions=2)
    await queue.partitions.resize(8)
    keys = [key_of(number, 8) for number in range(8)]
    jobs = [await queue.add("n", {"n": n}, partition_key=key) for n, key in enumerate(keys)]
    return Grown(queue, jobs, unaware)


async def test_a_job_of_a_further_partition_is_found(grown: Grown) -> None:
    job = await grown.old().jobs.get(grown.jobs[5].id)
    assert job is not None
    assert job.queue == "events#5"
    await grown.queue.add("n", job_id="own", partition_key=key_of(6, 8))
    assert await grown.old().jobs.state("own") == "waiting"


async def test_jobs_of_further_partitions_are_cancelled(grown: Grown) -> None:
    await grown.old().jobs.cancel(grown.jobs[7].id, "enough")
    assert await grown.queue.jobs.state(grown.jobs[7].id) == "failed"
    assert (await grown.old().jobs.cancel_all(reason="all")).cancelled == 7
    assert (await grown.queue.counts())["waiting"] == 0


async def test_results_of_further_partitions_are_awaited(grown: Grown) -> None:
    old = grown.old()
    grown.queue.fallback(lambda job: job.data["n"])
    waits = [asyncio.create_task(old.jobs.handle(one.id).result(LIMIT)) for one in grown.jobs]
    async with Worker(grown.queue, concurrency=4).running():
        assert await asyncio.gather(*waits) == list(range(8))


async def test_reads_of_all_jobs_span_further_partitions(grown: Grown) -> None:
    ids = {one.id for one in grown.jobs}
    assert (await grown.old().counts())["waiting"] == 8
    assert {job.id for job in await grown.old().jobs.list("waiting")} == ids
    assert {job.id for job in (await grown.old().jobs.search(name="n")).jobs} == ids
    assert (await grown.old().jobs.counts_per_priority()) == {0: 8}
    assert await grown.old().jobs.resolve(grown.jobs[6].id[:13]) == grown.jobs[6].id
    async with grown.old().events("0") as events:
        seen: set[str | None] = set()
        while not seen >= ids:
            seen |= {one.job_id for one in await asyncio.wait_for(events.read(), LIMIT)}


async def test_changes_of_all_jobs_span_further_partitions(grown: Grown) -> None:
    await grown.old().pause()
    assert await grown.queue.is_paused()
    await grown.old().limits.set_type_limit("n", concurrent=16)
    assert (await grown.queue.limits.type_limits())["n"].concurrent == 16
    await grown.old().limits.set_concurrency(24)
    assert await grown.queue.limits.concurrency() == 24
    assert await grown.old().jobs.clear() == 8
    assert (await grown.queue.counts())["waiting"] == 0


async def test_a_job_in_a_partition_that_was_given_up_is_found(make_queue: MakeQueue) -> None:
    late, queue = await with_layout(make_queue, 8), make_queue("events", partitions=8)
    await queue.partitions.resize(2)
    assert (await queue.partitions.retire()).served == 2
    first = await late.add("n", partition_key=key_of(5, 8))
    own = await late.add("n", job_id="own", partition_key=key_of(6, 8))
    assert spread_of(late).layout.size == 8
    for _ in range(2):
        for one in (queue, late):
            assert await one.jobs.state(first.id) == "waiting"
            assert await one.jobs.state(own.id) == "waiting"
        assert (await spread_of(late).refresh()).served == 2
    after = await queue.add("n", after=[first])
    job = await late.jobs.get(after.id)
    assert job is not None
    assert job.queue == "events#5"
    await queue.jobs.cancel(first.id, "enough")
    assert await late.jobs.state(first.id) == "failed"


async def test_obliterate_removes_partitions_that_were_given_up(
    make_queue: MakeQueue, store: redis.Redis
) -> None:
    queue, late = make_queue("events", partitions=4), make_queue("events#3")
    await queue.partitions.resize(1)
    assert (await queue.partitions.retire()).served == 1
    await late.add("n")
    assert await queue.jobs.obliterate() == 1
    assert store.keys("bull:events#*") == []
