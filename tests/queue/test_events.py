"""The event stream: in order, resumable and robust against losses; and the results that use it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from oxcart import Event, Queue
from oxcart import events as events_module
from oxcart.broker.link import ReplyError
from oxcart.events import QueueEvents
from oxcart.model.errors import BrokerUnavailable, JobFailed, ScriptError
from oxcart.testing import drain
from tests.conftest import MakeQueue
from tests.servers import ValkeyServer
from tests.signals import eventually


async def take(events: QueueEvents, count: int) -> list[Event]:
    taken: list[Event] = []
    async with asyncio.timeout(20):
        async for event in events:
            taken.append(event)
            if len(taken) == count:
                break
    return taken


class TestReading:
    async def test_events_of_a_job_in_order(self, queue: Queue) -> None:
        queue.fallback(lambda: {"x": 1})
        async with queue.events() as events:
            job = await queue.add("n")
            await drain(queue)
            seen = await take(events, 4)
        assert [event.name for event in seen] == ["added", "waiting", "active", "completed"]
        assert {event.job_id for event in seen} == {job.id}
        assert {event.queue for event in seen} == {"q"}
        assert seen[-1].return_value == {"x": 1}
        assert seen[-1].prev == "active"
        assert [event.timestamp for event in seen] == sorted(event.timestamp for event in seen)

    async def test_reader_sees_only_events_after_it_was_opened(self, queue: Queue) -> None:
        await queue.add("before")
        async with queue.events() as events:
            job = await queue.add("after")
            assert [event.job_id for event in await events.read()] == [job.id] * 2

    async def test_from_the_oldest(self, queue: Queue) -> None:
        job = await queue.add("n")
        async with queue.events(since="0") as events:
            assert (await events.read())[0].job_id == job.id

    async def test_goes_on_from_a_position(self, queue: Queue) -> None:
        await queue.add_many([("n", number) for number in range(5)])
        async with queue.events(since="0") as events:
            first = await take(events, 10)
            position = events.position
        assert position == first[-1].id
        await queue.add("n")
        async with queue.events(since=first[3].id) as events:
            again = await take(events, 8)
        assert [event.id for event in again[:6]] == [event.id for event in first[4:]]
        async with queue.events(since=position) as events:
            assert [event.name for event in await events.read()] == ["added", "waiting"]

    async def test_a_position_in_the_midst_of_a_page(self, queue: Queue) -> None:
        """A reader that stops within a page can continue from the last event that it used."""
        await queue.add_many([("n", number) for number in range(5)])
        async with queue.events(since="0") as events:
            used = (await take(events, 3))[-1]
        async with queue.events(since=used.id) as events:
            rest = await take(events, 7)
        assert len({event.id for event in rest} - {used.id}) == 7

    async def test_more_than_a_page(self, queue: Queue) -> None:
        await queue.add_many([("n", number) for number in range(1100)])
        async with queue.events(since="0") as events:
            seen = await take(events, 2200)
        assert len({event.id for event in seen}) == 2200

    async def test_by_name(self, queue: Queue) -> None:
        async with queue.events(names=["paused", "resumed"]) as events:
            await queue.add("n")
            await queue.pause()
            await queue.add("n")
            await queue.resume()
            assert [event.name for event in await take(events, 2)] == ["paused", "resumed"]

    async def test_nothing_within_the_time(self, queue: Queue) -> None:
        async with queue.events() as events:
            assert await events.read(block=0.01) == []

    async def test_unexpected_entries_of_peers_are_read(self, queue: Queue, store: redis.Redis) -> None:
        async with queue.events() as events:
            store.xadd("bull:q:events", {"event": "progress", "jobId": "1", "data": "not json"})
            store.xadd("bull:q:events", {"event": "unheard-of", "x": "y"})
            store.xadd("bull:q:events", {"no": "event"})
            store.xadd("bull:q:events", {b"event": b"\xff\xfe"})
            seen = await take(events, 4)
        assert [event.name for event in seen[:3]] == ["progress", "unheard-of", ""]
        assert (seen[0].data, seen[1].fields["x"]) == ("not json", "y")


class TestLosses:
    async def test_no_event_is_lost_with_the_connection(self, queue: Queue, store: redis.Redis) -> None:
        async with queue.events() as events:
            for _ in range(5):
                job = await queue.add("n")
                store.client_kill_filter(_type="normal", skipme=True)
                assert [event.job_id for event in await take(events, 2)] == [job.id, job.id]

    async def test_a_server_that_comes_back(self) -> None:
        with ValkeyServer(appendonly=True) as server:
            async with Queue("q", url=server.url) as queue, queue.events() as events:
                reading = asyncio.create_task(take(events, 2))
                await eventually(lambda: server.client().info("clients")["blocked_clients"] == 1, "reads")
                await asyncio.to_thread(server.restart)
                job = await queue.add("n")
                assert [event.job_id for event in await reading] == [job.id, job.id]

    async def test_a_refusal_that_passes_is_waited_out(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        refusals = ["MOVED 1 127.0.0.1:1", "LOADING the dataset", "UNBLOCKED the role changed"]
        async with queue.events() as events:
            await events.read(block=0.001)
            link: Any = vars(events._reader)["_link"]
            real = link.call

            async def call(*args: Any, **options: Any) -> Any:
                if refusals:
                    raise ReplyError(refusals.pop())
                return await real(*args, **options)

            monkeypatch.setattr(link, "call", call)
            await queue.add("n")
            assert [event.name for event in await take(events, 2)] == ["added", "waiting"]

    async def test_a_key_that_is_no_stream_raises(self, queue: Queue, store: redis.Redis) -> None:
        store.set("bull:q:events", "x")
        events = queue.events(since="0")
        with pytest.raises(ScriptError, match="WRONGTYPE"):
            await events.read()
        await events.close()

    async def test_closing_ends_a_reader_in_another_task(self, queue: Queue, store: redis.Redis) -> None:
        events = queue.events()
        reading = asyncio.create_task(take(events, 1))
        await eventually(lambda: store.info("clients")["blocked_clients"] == 1, "reads")
        await events.close()
        with pytest.raises(BrokerUnavailable, match="closed"):
            await asyncio.wait_for(reading, 5)


class TestResults:
    async def test_a_broken_stream_fails_the_waiters(self, queue: Queue, store: redis.Redis) -> None:
        job = await queue.add("n")
        waiting = asyncio.create_task(job.result())
        await eventually(lambda: store.info("clients")["blocked_clients"] == 1, "listens")
        store.set("bull:q:events", "x")
        store.client_kill_filter(_type="normal", skipme=True)
        with pytest.raises(ScriptError, match="WRONGTYPE"):
            await asyncio.wait_for(waiting, 10)

    async def test_closing_the_queue_fails_the_waiters(self, queue: Queue, store: redis.Redis) -> None:
        job = await queue.add("n")
        waiting = asyncio.create_task(job.result())
        await eventually(lambda: store.info("clients")["blocked_clients"] == 1, "listens")
        await queue.close()
        with pytest.raises(BrokerUnavailable, match="closed"):
            await asyncio.wait_for(waiting, 10)

    async def test_one_reader_for_all(self, queue: Queue, store: redis.Redis) -> None:
        queue.fallback(lambda job: job.data)
        jobs = await queue.add_many([("n", number) for number in range(50)])
        waiting = [asyncio.create_task(job.result(timeout=20)) for job in jobs]
        await eventually(lambda: store.info("clients")["blocked_clients"] == 1, "listens")
        assert sum(":qe" in client["name"] for client in store.client_list()) == 1
        await drain(queue)
        assert await asyncio.gather(*waiting) == list(range(50))

    async def test_through_a_loss_of_the_connection(self, queue: Queue, store: redis.Redis) -> None:
        @queue.job(attempts=1)
        async def broken() -> None:
            raise ValueError("no")

        queue.job(name="fine")(lambda: 5)
        jobs = [await queue.add("fine"), await broken.enqueue()]
        waiting = [asyncio.create_task(job.result(timeout=20)) for job in jobs]
        await eventually(lambda: store.info("clients")["blocked_clients"] == 1, "listens")
        store.client_kill_filter(_type="normal", skipme=True)
        await drain(queue)
        fine, failed = await asyncio.gather(*waiting, return_exceptions=True)
        assert fine == 5
        assert isinstance(failed, JobFailed)


class TestPosition:
    async def test_the_position_is_that_of_the_current_event(self, queue: Queue) -> None:
        """A reader that saves it after each event misses nothing if it ends within a page."""
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
    """Acts as if an outage had more events than the stream keeps."""
    monkeypatch.setattr(events_module, "LOOK_AGAIN", 0.2)
    queue = make_queue("trimmed")
    handle = await queue.add("n")
    waiting = asyncio.create_task(handle.result(timeout=10))
    await eventually(lambda: queue._core.results._reading.is_set(), "the reader")
    await asyncio.sleep(0.05)
    store.hset(f"bull:trimmed:{handle.id}", mapping={"finishedOn": "1", "returnvalue": "7"})
    store.lrem("bull:trimmed:wait", 0, handle.id)
    store.zadd("bull:trimmed:completed", {handle.id: 1})
    assert await waiting == 7
