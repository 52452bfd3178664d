"""Positions, results and queues where something is interrupted, trimmed, or used from several loops."""

from __future__ import annotations

import asyncio
import threading

import pytest
import redis

from oxcart import Queue, Worker
from oxcart import events as events_module
from tests.conftest import MakeQueue
from tests.signals import eventually


class TestPosition:
    async def test_is_that_of_the_event_in_hand(self, queue: Queue) -> None:
        """Whoever keeps it after each event, and is ended in the midst of a page, misses nothing."""
        await queue.add_many([("n", number) for number in range(5)])
        seen, kept = [], "0"
        async with queue.events(since=kept) as events:
            async for event in events:
                seen.append(event.id)
                kept = events.position
                if len(seen) == 3:
                    break
        assert kept == seen[-1]
        async with queue.events(since=kept) as events:
            async for event in events:
                seen.append(event.id)
                if len(seen) == 10:
                    break
        assert len(set(seen)) == 10

    async def test_a_second_loop_goes_on_where_the_first_ended(self, queue: Queue) -> None:
        await queue.add_many([("n", number) for number in range(3)])
        async with queue.events(since="0", names=["added"]) as events:
            first = ""
            async for event in events:
                first = event.id
                break
            async for event in events:
                assert event.id > first
                break
            async with asyncio.timeout(60):
                assert [event.name for event in await events.read()] == ["added"]


async def test_a_result_whose_event_was_trimmed_away(
    make_queue: MakeQueue, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an outage in which more happened than the stream keeps."""
    monkeypatch.setattr(events_module, "LOOK_AGAIN", 0.2)
    queue = make_queue("trimmed")
    handle = await queue.add("n")
    waiting = asyncio.create_task(handle.result(timeout=10))
    await eventually(lambda: queue.results._reading.is_set(), "the reader")
    await asyncio.sleep(0.05)
    store.hset(f"bull:trimmed:{handle.id}", mapping={"finishedOn": "1", "returnvalue": "7"})
    store.lrem("bull:trimmed:wait", 0, handle.id)
    store.zadd("bull:trimmed:completed", {handle.id: 1})
    assert await waiting == 7


async def test_loops_of_several_threads_keep_their_connections(
    make_queue: MakeQueue, store: redis.Redis
) -> None:
    queue = make_queue("shared")
    turns = [threading.Event(), threading.Event()]

    async def adds(me: int) -> None:
        for _ in range(10):
            await asyncio.to_thread(turns[me].wait, 60)
            turns[me].clear()
            await queue.add("n")
            turns[1 - me].set()
        await queue.close()

    before = int(store.info("stats")["total_connections_received"])
    threads = [threading.Thread(target=lambda me=me: asyncio.run(adds(me))) for me in (0, 1)]
    for thread in threads:
        thread.start()
    turns[0].set()
    for thread in threads:
        await asyncio.to_thread(thread.join, 60)
    made = int(store.info("stats")["total_connections_received"]) - before
    assert (await queue.counts())["waiting"] == 20
    assert made <= 4


async def test_a_queue_at_its_limit_does_not_keep_others_waiting(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Woken by its marker: neither a poll nor the end of the limit comes in time."""
    monkeypatch.setattr("oxcart.engine.waiter.POLL", 600.0)
    monkeypatch.setattr("oxcart.engine.claims.LIMITED", 600_000)
    limited, free = make_queue("limited"), make_queue("free")
    started = asyncio.Event()

    @limited.job
    async def slow() -> None:
        started.set()
        await asyncio.sleep(0.005)

    @free.job
    async def quick() -> int:
        return 1

    for _ in range(5):
        await slow.enqueue()
    worker = Worker(limited, free, limiter=(3, 600), concurrency=1)
    async with asyncio.timeout(60), worker.running():
        await started.wait()
        await eventually(lambda: worker._stations[0].until_ms > 0, "the limited queue was asked in vain")
        assert await (await quick.enqueue()).result(timeout=20) == 1
