"""Schedules of a partitioned queue: each fires in one partition, also through a resize."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

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


async def interrupt_a_move(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resizes a queue, and loses the server between the copy of its schedule and the end of the move."""

    async def lost(*_: Any) -> bool:
        raise BrokerUnavailable("lost")

    with monkeypatch.context() as patched:
        patched.setattr(QueueSchedules, "resume", lost)
        await queue.partitions.resize(1)
    assert await held(queue) == [0, 3]


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
    await interrupt_a_move(queue, monkeypatch)
    await spread_of(queue).settle()
    assert await held(queue) == [0]
    [found] = await queue.schedules.list()
    assert not found.paused
    assert (await queue.counts())["delayed"] == 1


@pytest.mark.parametrize("verb", ["remove", "pause", "upsert"])
async def test_a_change_of_a_schedule_that_moves_is_kept(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    queue, user = make_queue("events", partitions=4), make_queue("events", partitions=4)
    await queue.schedules.upsert(NAME, every="1h", name="tick", offset="7m")
    pause = QueueSchedules.pause
    changes: list[asyncio.Task[Any]] = []

    async def change() -> Any:
        if verb == "upsert":
            return await user.schedules.upsert(NAME, every="2h", name="tock", offset="9m")
        return await getattr(user.schedules, verb)(NAME)

    async def paused(self: QueueSchedules, schedule_id: str) -> bool:
        """The user changes the schedule once the mover has read it."""
        done = await pause(self, schedule_id)
        monkeypatch.setattr(QueueSchedules, "pause", pause)
        command = self._caller.command

        async def read(*args: Any, **more: Any) -> Any:
            found = await command(*args, **more)
            if args[0] == "HGETALL" and not changes:
                monkeypatch.setattr(self._caller, "command", command)
                changes.append(asyncio.create_task(change()))
                await asyncio.wait(changes, timeout=0.5)  # it may wait for the move
            return found

        monkeypatch.setattr(self._caller, "command", read)
        return done

    monkeypatch.setattr(QueueSchedules, "pause", paused)
    await queue.partitions.resize(1)
    assert await changes[0]
    for _ in range(2):
        found = await queue.schedules.list()
        if verb == "remove":
            assert found == []
        elif verb == "pause":
            assert found[0].paused
        else:
            [one] = found
            assert (one.name, one.schedule.every, one.paused) == ("tock", 7_200_000, False)
        assert await held(queue) == ([] if verb == "remove" else [0])
        assert (await queue.counts())["delayed"] == int(verb == "upsert")
        await spread_of(queue).settle()


@pytest.mark.parametrize("verb", ["pause", "resume", "remove", "upsert"])
async def test_a_change_completes_an_interrupted_move_first(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    queue = make_queue("events", partitions=4)
    await queue.schedules.upsert(NAME, every="1h", name="tick", offset="7m")
    await interrupt_a_move(queue, monkeypatch)
    if verb == "upsert":
        await queue.schedules.upsert(NAME, every="1h", name="tick", offset="7m")
    else:
        await getattr(queue.schedules, verb)(NAME)
    for _ in range(2):
        assert await held(queue) == ([] if verb == "remove" else [0])
        assert [one.paused for one in await queue.schedules.list()] == (
            [] if verb == "remove" else [verb == "pause"]
        )
        assert (await queue.counts())["delayed"] == int(verb in ("resume", "upsert"))
        await spread_of(queue).settle()


async def test_a_move_ends_when_another_client_may_have_changed_the_schedule(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch, store: redis.Redis
) -> None:
    queue = make_queue("events", partitions=4)
    await queue.schedules.upsert(NAME, every="1h", name="tick", offset="7m")
    pause = QueueSchedules.pause

    async def away(self: QueueSchedules, schedule_id: str) -> bool:
        """This client was suspended: its mark has ended, and another client set its own."""
        done = await pause(self, schedule_id)
        store.set(f"bull:events#0:ox:dividing:{NAME}", "another", px=60_000)
        return done

    monkeypatch.setattr(QueueSchedules, "pause", away)
    await queue.partitions.resize(1)
    assert await held(queue) == [3]
    monkeypatch.setattr(QueueSchedules, "pause", pause)
    store.delete(f"bull:events#0:ox:dividing:{NAME}")
    await spread_of(queue).settle()
    assert await held(queue) == [0]
    assert not (await queue.schedules.list())[0].paused
