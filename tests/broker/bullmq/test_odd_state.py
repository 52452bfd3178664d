"""Verbs on state that a fault or a peer left behind: no job is lost, duplicated or forgotten."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import redis

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.connection import Server
from oxcart.broker.port import Ask, Outcome, OutcomeKind
from oxcart.model.options import JobOptions
from tests.conftest import MakeQueue


@pytest_asyncio.fixture
async def broker(url: str) -> AsyncIterator[BullMQBroker]:
    made = BullMQBroker(Server(url), "q")
    yield made
    await made.close()


async def fill(broker: BullMQBroker, count: int, **options: object) -> list[str]:
    jobs = [broker.encode("n", {}, JobOptions(**options)) for _ in range(count)]  # type: ignore[arg-type]
    return [added.id for added in await broker.add(jobs)]


class TestBetweenTwoLists:
    @pytest.mark.parametrize("kind", ["r", "d", "w"])
    async def test_an_event_that_cannot_be_written_does_not_double_a_job(
        self, broker: BullMQBroker, store: redis.Redis, kind: str
    ) -> None:
        await fill(broker, 1)
        (job,) = (await broker.claim(Ask(count=1))).jobs
        store.hset("bull:q:meta", "opts.maxLenEvents", "many")
        await broker.finish(
            [Outcome(OutcomeKind(kind), job.id, job.token, job.starts, 1, b"no", b"[]", delay_ms=5)]
        )
        places = (
            store.lrange("bull:q:active", 0, -1)
            + store.lrange("bull:q:wait", 0, -1)
            + store.zrange("bull:q:delayed", 0, -1)
        )
        assert len(places) == 1

    async def test_a_stalled_job_that_cannot_be_recovered_stays_active(
        self, broker: BullMQBroker, store: redis.Redis
    ) -> None:
        (job_id,) = await fill(broker, 1)
        await broker.claim(Ask(count=1))
        store.delete(f"bull:q:{job_id}:lock")
        store.sadd("bull:q:stalled", job_id)
        store.set("bull:q:wait", "no list")
        with contextlib.suppress(Exception):
            await broker.recover(interval_ms=1)
        assert store.llen("bull:q:active") == 1

    @pytest.mark.parametrize("priority", [0, 1])
    async def test_a_due_job_that_cannot_be_promoted_stays_delayed(
        self, broker: BullMQBroker, store: redis.Redis, priority: int
    ) -> None:
        await fill(broker, 2, delay=1, priority=priority, timestamp=1)
        store.set("bull:q:wait", "no list")
        store.set("bull:q:prioritized", "no set")
        with contextlib.suppress(Exception):
            await broker.promote()
        assert store.zcard("bull:q:delayed") == 2

    async def test_promoting_a_delayed_id_without_a_job_creates_no_job(
        self, broker: BullMQBroker, store: redis.Redis
    ) -> None:
        store.zadd("bull:q:delayed", {"gone": 1})
        with contextlib.suppress(Exception):
            await broker.promote_job("gone")
        assert not store.exists("bull:q:gone")
        assert not store.llen("bull:q:wait")


class TestPauseLists:
    """A BullMQ 5 peer renames one list onto the other and loses every job left in the target list."""

    @pytest.mark.parametrize("paused", [True, False])
    async def test_long_lists_of_two_generations_are_merged_whole(
        self, broker: BullMQBroker, store: redis.Redis, paused: bool
    ) -> None:
        for start in range(0, 6000, 3000):
            store.lpush("bull:q:wait", *[f"w{n}" for n in range(start, start + 3000)])
            store.lpush("bull:q:paused", *[f"p{n}" for n in range(start, start + 3000)])
        if paused:
            await broker.pause()
        else:
            store.hset("bull:q:meta", "paused", 1)
            await broker.resume()
        full, empty = ("paused", "wait") if paused else ("wait", "paused")
        assert store.llen(f"bull:q:{empty}") == 0
        ids = store.lrange(f"bull:q:{full}", 0, -1)
        assert len(ids) == len(set(ids)) == 12_000


class TestWaking:
    async def test_the_tick_wakes_workers_for_a_returned_prioritized_job(
        self, broker: BullMQBroker, store: redis.Redis
    ) -> None:
        await fill(broker, 1, priority=3)
        (job,) = (await broker.claim(Ask(count=1))).jobs
        await broker.finish([Outcome(OutcomeKind.GIVE_BACK, job.id, job.token, job.starts, 1)])
        store.delete("bull:q:marker")  # a worker took it for an earlier job
        await broker.promote()
        assert store.zscore("bull:q:marker", "0") == 0


class TestForeignIds:
    async def test_an_id_that_is_no_text_does_not_stop_its_neighbours(
        self, broker: BullMQBroker, store: redis.Redis
    ) -> None:
        (good,) = await fill(broker, 1)
        raw = b"\xff\xfe"
        store.hset(b"bull:q:" + raw, mapping={"name": "n", "data": "{}", "opts": "{}", "timestamp": 1})
        store.rpush("bull:q:wait", raw)
        claimed = await broker.claim(Ask(count=5))
        assert [job.id for job in claimed.jobs] == [good]
        assert len(claimed.orphans) == 1
        odd = (await broker.page("active", 0, 9, oldest=True))[0].id
        assert (await broker.states([odd])) == ["active"]
        store.delete(b"bull:q:" + raw + b":lock")
        await broker.recover(interval_ms=1)
        await asyncio.sleep(0.01)
        assert (await broker.recover(interval_ms=1)).ids == [odd]
        await broker.remove_job(odd)
        assert not store.exists(b"bull:q:" + raw)

    async def test_new_jobs_after_an_id_that_is_no_text_keep_their_values(
        self, broker: BullMQBroker, store: redis.Redis
    ) -> None:
        """The names of their fields are sent once, with the first job of the reply."""
        for raw in (b"\xff\xfe", b"one", b"two"):
            fields = {
                "name": b"n-" + raw,
                "data": "{}",
                "opts": "{}",
                "timestamp": 1,
                "delay": 0,
                "priority": 0,
            }
            store.hset(b"bull:q:" + raw, mapping=dict[Any, Any](fields))
            store.lpush("bull:q:wait", raw)
        claimed = await broker.claim(Ask(count=5))
        assert [(job.id, job.name, job.fault) for job in claimed.jobs] == [
            ("one", "n-one", ""),
            ("two", "n-two", ""),
        ]
        assert len(claimed.orphans) == 1


async def test_a_stalled_check_guard_without_an_end_is_taken_over(
    make_queue: MakeQueue, store: redis.Redis
) -> None:
    broker = make_queue("guarded")._core.broker
    store.set("bull:guarded:stalled-check", "1")
    assert (await broker.recover(max_stalled=1, interval_ms=60_000)).ran
    assert 0 < store.pttl("bull:guarded:stalled-check") <= 60_000
    assert not (await broker.recover(max_stalled=1, interval_ms=60_000)).ran
