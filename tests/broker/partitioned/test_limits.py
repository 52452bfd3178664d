"""Limits of a partitioned queue: their sum holds while the number of partitions changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from oxcart import Queue, Worker
from oxcart.broker.bullmq.limits import QueueLimits
from oxcart.broker.partitioned.shares import granted, seeds
from oxcart.broker.port import Ask, Outcome, OutcomeKind
from oxcart.model.errors import BrokerUnavailable
from oxcart.model.partitions import partition_of
from tests.conftest import MakeQueue
from tests.signals import eventually


def key_of(number: int, size: int) -> str:
    return next(f"k{n}" for n in range(100_000) if partition_of(f"k{n}", size) == number)


def test_shares_leave_room_for_what_runs() -> None:
    assert granted([1] * 8, [4, 4, 0, 0, 0, 0, 0, 0]) == [4, 4, 0, 0, 0, 0, 0, 0]
    assert granted([1] * 8, [4, 2, 0, 0, 0, 0, 0, 0]) == [4, 2, 1, 1, 0, 0, 0, 0]
    assert granted([3, 3, 2, 2], [0] * 4) == [3, 3, 2, 2]
    assert granted([2, 2], [5, 0]) == [4, 0], "a job beyond the bound leaves by itself"
    assert granted([1, 1], [3, 3]) == [1, 1], "a lower limit than what runs"


def test_a_rate_counts_what_started_in_the_present_window() -> None:
    assert seeds([2] * 4, [4, 4, None, None], [4, 3, 0, 0]) == [0, 0, 1, 2]
    assert seeds([2] * 4, [4, 4, None, None], [0, 0, 0, 0]) == [0, 0, 0, 0]
    assert seeds([4, 2, 1, 1], [2, 2, 2, 2], [0, 2, 2, 2]) == [2, 0, 0, 0]


async def test_the_limit_of_jobs_at_once_holds_during_a_resize(make_queue: MakeQueue) -> None:
    queue = make_queue("events", partitions=2)
    await queue.limits.set_concurrency(8)
    running, most, ended = 0, 0, 0
    places = asyncio.Semaphore(0)

    async def count() -> None:
        nonlocal running, most, ended
        running += 1
        most = max(most, running)
        await places.acquire()
        running -= 1
        ended += 1

    queue.job(name="count")(count)
    for number in (0, 1) * 4:
        await queue.add("count", {}, partition_key=key_of(number, 2))
    async with Worker(queue, concurrency=30).running():
        await eventually(lambda: running == 8, "all places are taken")
        await queue.partitions.resize(8)
        assert await queue.limits.concurrency() == 8
        for number in range(8):
            for _ in range(2):
                await queue.add("count", {}, partition_key=key_of(number, 8))
        for gone in range(1, 9):
            places.release()
            await eventually(lambda gone=gone: ended == gone and running == 8, "its place is taken again", 60)  # type: ignore[misc]
        for _ in range(20):
            places.release()
        await eventually(lambda: _completed(queue, 24), "all have run", 60)
        await eventually(lambda: _bounds_are(queue, [1] * 8), "the shares are even", 60)
    assert most == 8
    assert await queue.limits.concurrency() == 8


async def _completed(queue: Queue, count: int) -> bool:
    return (await queue.counts())["completed"] == count


async def _bounds_are(queue: Queue, bounds: list[int]) -> bool:
    spread: Any = queue._core.broker.partitions
    return [await one.limits.concurrency() for one in spread.brokers()] == bounds


async def test_a_limit_keeps_its_sum_when_partitions_are_given_up(make_queue: MakeQueue) -> None:
    queue = make_queue("events", partitions=4)
    await queue.limits.set_concurrency(9)
    await queue.limits.set_rate(100, per="1m")
    await queue.limits.set_type_limit("n", concurrent=12, per_minute=40)
    await queue.partitions.resize(2)
    await queue.partitions.retire()
    assert await queue.limits.concurrency() == 9
    rate = await queue.limits.rate()
    assert rate is not None
    assert rate.most == 100
    limit = (await queue.limits.type_limits())["n"]
    assert (limit.concurrent, limit.per_minute) == (12, 40)


@pytest.mark.parametrize("kind", ["rate", "type"])
async def test_a_rate_is_not_granted_afresh_by_a_resize(make_queue: MakeQueue, kind: str) -> None:
    queue = make_queue("events", partitions=2)
    if kind == "rate":
        await queue.limits.set_rate(8, per="1m")
    else:
        await queue.limits.set_type_limit("n", per_minute=8)
    for number in (0, 1) * 4:
        await queue.add("n", partition_key=key_of(number, 2))
    assert await start_all(queue) == 8
    await queue.partitions.resize(8)
    for number in range(8):
        await queue.add("n", partition_key=key_of(number, 8))
    assert await start_all(queue) == 0, "the minute is used up"


async def start_all(queue: Queue) -> int:
    """Starts and completes what the partitions permit."""
    spread: Any = queue._core.broker.partitions
    await spread.refresh()
    started = 0
    for broker in spread.brokers():
        jobs = (await broker.claim(Ask(50, lock_ms=30_000))).jobs
        now = broker.clock()
        ends = [
            Outcome(OutcomeKind("c"), job.id, job.token, job.starts, now, b"1", b"[]", attempts=1)
            for job in jobs
        ]
        if ends:
            await broker.finish(ends, Ask(0))
        started += len(jobs)
    return started


async def test_a_lower_limit_of_a_type_shrinks_before_others_grow(make_queue: MakeQueue) -> None:
    queue = make_queue("events", partitions=3)
    spread: Any = queue._core.broker.partitions
    await queue.limits.set_type_limit("n", concurrent=9)
    for number, share in enumerate((1, 1, 7)):  # as an interrupted change left them
        await spread.broker(number).limits.set_type("n", share, 0)
    written: list[int] = []
    for number in range(3):
        limits = spread.broker(number).limits
        keep = limits.set_type

        async def note(*args: Any, number: int = number, keep: Any = keep) -> None:
            written.append(number)
            await keep(*args)

        limits.set_type = note
    await queue.limits.set_type_limit("n", concurrent=9)
    assert written[0] == 2


async def test_a_limit_does_not_outlive_its_removal_in_partitions_that_were_given_up(
    make_queue: MakeQueue,
) -> None:
    queue = make_queue("events", partitions=4)
    await queue.limits.set_concurrency(8)
    await queue.limits.set_rate(8, per="1m")
    await queue.limits.set_type_limit("n", concurrent=8, per_minute=8)
    await queue.limits.set_key_limit(concurrent=1)
    await queue.pause()
    await queue.partitions.resize(2)
    await queue.partitions.retire()
    await queue.limits.remove_concurrency()
    await queue.limits.remove_rate()
    await queue.limits.remove_type_limit("n")
    await queue.limits.remove_key_limit()
    await queue.resume()
    spread: Any = queue._core.broker.partitions
    await spread.broker(3).limits.set_concurrency(0)  # as earlier versions left it
    await queue.partitions.resize(4)
    for _ in range(3):
        await queue.add("n", partition_key=key_of(3, 4), limit_key="one")
    assert await start_all(queue) == 3
    for broker in spread.brokers():
        assert await broker.limits.concurrency() is None
        assert await broker.limits.rate() is None
        assert not (rules := await broker.limits.rules()).types
        assert not any(rules.keys)


async def shares_of(queue: Queue) -> list[int | None]:
    spread: Any = queue._core.broker.partitions
    return [await one.limits.concurrency() for one in spread.brokers()]


async def test_an_interrupted_division_keeps_the_limit(make_queue: MakeQueue) -> None:
    queue = make_queue("events", partitions=2)
    await queue.limits.set_concurrency(8)
    await queue.limits.set_rate(16, per="1m")
    await queue.limits.set_type_limit("n", concurrent=8, per_minute=24)
    spread: Any = queue._core.broker.partitions
    for verb in ("set_concurrency", "set_rate", "set_type"):
        limits = spread.broker(2).limits

        async def lost(*_: Any) -> None:
            raise BrokerUnavailable("lost")

        setattr(limits, verb, lost)
        with pytest.raises(BrokerUnavailable):
            await queue.partitions.resize(8)
        delattr(limits, verb)
        await spread.settle()
        assert await shares_of(queue) == [4, 4]
    await queue.partitions.resize(8)
    for broker in spread.brokers():
        assert await broker.limits.concurrency() == 1
        assert await broker.limits.rate() == (2, 60_000)
        assert (await broker.limits.rules()).types == {"n": (1, 3)}


async def test_an_interrupted_removal_of_a_limit_is_continued(make_queue: MakeQueue) -> None:
    queue = make_queue("events", partitions=2)
    await queue.limits.set_concurrency(8)
    spread: Any = queue._core.broker.partitions
    limits = spread.broker(1).limits

    async def lost(*_: Any) -> None:
        raise BrokerUnavailable("lost")

    limits.remove_concurrency = lost
    with pytest.raises(BrokerUnavailable):
        await queue.limits.remove_concurrency()
    del limits.remove_concurrency
    assert await shares_of(queue) == [None, 4]
    assert await queue.limits.concurrency() is None
    await spread.settle()
    assert await shares_of(queue) == [None, None]


@pytest.mark.parametrize("kind", ["queue", "type"])
async def test_jobs_that_start_while_shares_move_keep_their_places(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    queue = make_queue("events", partitions=2)
    if kind == "queue":
        await queue.limits.set_concurrency(8)
    else:
        await queue.limits.set_type_limit("n", concurrent=8)
    for number in (0, 1) * 4:
        await queue.add("n", partition_key=key_of(number, 2))
    spread: Any = queue._core.broker.partitions
    started, one_by_one = 0, asyncio.Lock()

    async def start(most: int) -> None:
        nonlocal started
        for broker in spread.brokers():
            jobs = (await broker.claim(Ask(most, lock_ms=30_000))).jobs
            started += len(jobs)

    await start(1)
    for verb in ("set_concurrency", "shrink", "set_type", "shrink_type"):
        keep = getattr(QueueLimits, verb, None)
        if keep is None:
            continue

        async def first_write(self: QueueLimits, *args: Any, keep: Any = keep) -> Any:
            async with one_by_one:
                if started == 2:  # behind all reads of the division
                    await start(3)
            return await keep(self, *args)

        monkeypatch.setattr(QueueLimits, verb, first_write)
    await queue.partitions.resize(8)
    assert started == 8
    for number in range(8):
        for _ in range(3):
            await queue.add("n", partition_key=key_of(number, 8))
    await start(3)
    # A share of zero would be no limit of a type: each of the six others may start one job.
    assert started == (8 if kind == "queue" else 14)


async def test_a_limit_that_is_set_during_a_resize_is_divided_for_the_new_layout(
    make_queue: MakeQueue,
) -> None:
    queue, other = make_queue("events", partitions=4), make_queue("events", partitions=4)
    await queue.limits.set_concurrency(9)
    await other.limits.concurrency()
    spread: Any = queue._core.broker.partitions
    rival: Any = other._core.broker.partitions
    prepare = spread.prepare
    tasks: list[asyncio.Task[None]] = []

    async def prepared(*args: Any) -> None:
        await prepare(*args)
        await rival.settle()
        assert await shares_of(queue) == shares, "another client does not divide meanwhile"
        tasks.append(asyncio.create_task(other.limits.set_concurrency(11)))

    await queue.partitions.resize(2)
    shares = [5, 4, 0, 0]
    spread.prepare = prepared
    await queue.partitions.retire()
    await tasks[0]
    assert await shares_of(queue) == [6, 5]
    assert await queue.limits.concurrency() == 11
    await rival.settle()
    assert await shares_of(queue) == [6, 5]


async def test_a_client_leaves_the_mark_of_another_alone(make_queue: MakeQueue, store: redis.Redis) -> None:
    queue = make_queue("events", partitions=2)
    await queue.limits.set_concurrency(8)
    broker: Any = queue._core.broker
    async with broker.limits.alone():
        store.set("bull:events#0:ox:dividing", "another", px=60_000)  # this client was away for too long
    assert store.get("bull:events#0:ox:dividing") == "another"
    assert not await broker.limits.settle() or await shares_of(queue) == [4, 4]
    store.delete("bull:events#0:ox:dividing")
    async with broker.limits.alone():
        pass
    assert not store.exists("bull:events#0:ox:dividing")


async def test_a_limit_below_the_partitions_that_come_back_lets_each_run_one_job(
    make_queue: MakeQueue,
) -> None:
    queue, late = make_queue("events", partitions=4), make_queue("events#3")
    await queue.limits.set_concurrency(4)
    await queue.partitions.resize(2)
    await queue.partitions.retire()
    await queue.limits.set_concurrency(2)
    job = await late.add("n")
    spread: Any = queue._core.broker.partitions
    assert (await spread.reclaim()).served == 4
    assert await shares_of(queue) == [1, 1, 1, 1]
    assert await start_all(queue) == 1
    assert await queue.limits.concurrency() == 2
    await late.jobs.remove(job.id)
    await queue.partitions.retire()
    assert await shares_of(queue) == [1, 1]


async def test_limits_end_with_their_queue(make_queue: MakeQueue) -> None:
    queue = make_queue("events", partitions=2)
    await queue.limits.set_concurrency(8)
    await queue.limits.set_type_limit("n", concurrent=8)
    await queue.jobs.obliterate()
    spread: Any = queue._core.broker.partitions
    await spread.settle()
    assert await queue.limits.concurrency() is None
    assert not await queue.limits.type_limits()
    assert await shares_of(queue) == [None, None]
