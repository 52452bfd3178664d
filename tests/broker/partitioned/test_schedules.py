"""Schedules of a partitioned queue: each fires in one partition, also through a resize."""

from __future__ import annotations

from typing import Any

import pytest

from oxcart import Queue
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.schedules import QueueSchedules
from oxcart.broker.partitioned.spread import Spread
from oxcart.model.errors import BrokerUnavailable
from oxcart.model.options import JobOptions
from oxcart.model.partitions import partition_of
from oxcart.model.schedule import Schedule
from tests.conftest import MakeQueue

#: A schedule whose partition of four is the last.
NAME = next(f"s{n}" for n in range(1000) if partition_of(f"s{n}", 4) == 3)


def spread_of(queue: Queue) -> Spread:
    spread = queue._core.broker.partitions
    assert isinstance(spread, Spread)
    return spread


async def held(queue: Queue) -> list[int]:
    """Returns the partitions that have the schedule."""
    brokers = spread_of(queue).brokers()
    return [number for number, one in enumerate(brokers) if await one.schedules.get(NAME) is not None]


async def test_a_resize_moves_a_schedule_with_its_count_and_its_beat(make_queue: MakeQueue) -> None:
    queue = make_queue("events", partitions=4)
    await queue.schedules.upsert(NAME, every="1h", name="tick", data={"n": 1}, offset="7m", limit=5)
    [before] = await queue.schedules.list()
    assert await held(queue) == [3]
    await queue.partitions.resize(2)
    [after] = await queue.schedules.list()
    assert after == before
    assert (await held(queue))[0] < 2
    assert [row["delayed"] for row in await queue.partitions.counts()][2:] == [0, 0]
    assert (await queue.counts())["delayed"] == 1
    assert (await queue.partitions.retire()).served == 2


async def test_a_paused_schedule_stays_paused(make_queue: MakeQueue) -> None:
    queue = make_queue("events", partitions=4)
    await queue.schedules.upsert(NAME, every="1h", name="tick", offset="7m")
    await queue.schedules.pause(NAME)
    await queue.partitions.resize(1)
    [found] = await queue.schedules.list()
    assert found.paused
    assert await held(queue) == [0]
    assert await queue.schedules.resume(NAME)
    assert (await queue.counts())["delayed"] == 1


async def test_one_of_two_copies_is_kept(make_queue: MakeQueue) -> None:
    """Two clients with different layouts stored it at the same time."""
    queue = make_queue("events", partitions=4)
    await queue.partitions.layout()
    for number in (1, 3):
        broker: BullMQBroker = spread_of(queue).broker(number)
        await broker.schedules.upsert(NAME, Schedule(every=3_600_000, offset=7), "tick", b"{}", JobOptions())
    assert await queue.schedules.count() == 2
    await spread_of(queue).settle()
    assert await held(queue) == [3]
    assert (await queue.counts())["delayed"] == 1


async def test_a_move_that_was_interrupted_is_continued(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make_queue("events", partitions=4)
    await queue.schedules.upsert(NAME, every="1h", name="tick", offset="7m")
    resume = QueueSchedules.resume

    async def lost(*_: Any) -> bool:
        raise BrokerUnavailable("lost")

    monkeypatch.setattr(QueueSchedules, "resume", lost)
    await queue.partitions.resize(1)
    assert await held(queue) == [0, 3]
    monkeypatch.setattr(QueueSchedules, "resume", resume)
    await spread_of(queue).settle()
    assert await held(queue) == [0]
    [found] = await queue.schedules.list()
    assert not found.paused
    assert (await queue.counts())["delayed"] == 1
