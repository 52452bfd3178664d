"""Fair groups on every broker that has them, clusters included."""

from __future__ import annotations

from collections import Counter
from typing import Any

from oxcart import Queue, Worker
from oxcart.broker.port import Ask, ClaimedJob, Outcome, OutcomeKind
from tests.conformance.conftest import Venue

#: How many jobs that are let through stay ready.
WINDOW = 20


async def run_all(queue: Queue) -> list[str]:
    """Claims and completes all jobs, one by one; returns their groups in order."""
    broker, order = queue._core.broker, list[str]()
    while jobs := (await broker.claim(Ask(1, worker="w"))).jobs:
        order += [job.options.group or "" for job in jobs]
        await broker.finish([completed(queue, job) for job in jobs], Ask(0))
    return order


def completed(queue: Queue, job: ClaimedJob) -> Outcome:
    return Outcome(
        OutcomeKind.COMPLETED, job.id, job.token, job.starts, queue._core.broker.clock(), b"1", b"[]"
    )


def rows(group: str, many: int) -> list[Any]:
    return [("n", {"n": n}, {"group": group}) for n in range(many)]


async def test_a_large_group_does_not_hold_the_others_up(venue: Venue) -> None:
    venue.needs("groups")
    queue = venue.queue()
    await queue.add_many([*rows("hog", 100), *rows("a", 5), *rows("b", 5)])
    await queue.add_many([("n", {}) for _ in range(5)])
    order = await run_all(queue)
    assert Counter(order) == {"hog": 100, "a": 5, "b": 5, "": 5}
    assert max(place for place, group in enumerate(order) if group != "hog") <= WINDOW + 4 * 5


async def test_limits_and_pauses_of_groups(venue: Venue) -> None:
    venue.needs("groups")
    queue = venue.queue()
    await queue.groups.set_all(concurrent=2)
    await queue.groups.set("b", concurrent=1)
    await queue.groups.pause("c")
    await queue.add_many([row for group in "abc" for row in rows(group, 4)])
    broker = queue._core.broker
    jobs = (await broker.claim(Ask(20, worker="w"))).jobs
    assert Counter(job.options.group for job in jobs) == {"a": 2, "b": 1}
    assert (await queue.groups.usage("a")).running == 2
    assert await queue.groups.list() == {"a": 2, "b": 3, "c": 4}
    _, more = await broker.finish([completed(queue, job) for job in jobs], Ask(20, worker="w"))
    assert Counter(job.options.group for job in more.jobs) == {"a": 2, "b": 1}
    assert await queue.groups.clear("b") == 2
    assert await queue.groups.cancel("c") == 4


async def test_workers_run_the_jobs_of_all_groups(venue: Venue) -> None:
    venue.needs("groups")
    queue = venue.queue()
    await queue.groups.set_all(concurrent=3)

    @queue.fallback
    async def work(n: int) -> int:
        return n

    async with Worker(queue, concurrency=8).running():
        handles = await queue.add_many([row for group in "abcde" for row in rows(group, 12)])
        assert [await handle.result(60) for handle in handles] == [*range(12)] * 5
