"""The size of a payload is checked before any write, for every way to add a job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis

import oxcart.sync
from oxcart import Flow, Graph, Queue
from oxcart.model.errors import PayloadTooLarge, ValidationError

MIB = 2**20


async def one(queue: Queue, data: str, url: str, **options: Any) -> None:
    await queue.add("n", data, **options)


async def many(queue: Queue, data: str, url: str, **options: Any) -> None:
    await queue.add_many([("n", 1), ("n", data, options), ("n", 2)])


async def flow(queue: Queue, data: str, url: str, **options: Any) -> None:
    await Flow(queue, "top").after(Flow(queue, "leaf", data, **options)).add()


async def graph(queue: Queue, data: str, url: str, **options: Any) -> None:
    made = Graph(queue)
    first = made.job("first")
    made.job("second", data, after=[first], **options)
    await made.add()


async def schedule(queue: Queue, data: str, url: str, **options: Any) -> None:
    await queue.schedules.upsert("s", every="1h", data=data, **options)


async def without_await(queue: Queue, data: str, url: str, **options: Any) -> None:
    def add() -> None:
        with oxcart.sync.Queue("q", url=url) as own:
            own.add("n", data, **options)

    await asyncio.to_thread(add)


DOORS = [one, many, flow, graph, schedule, without_await]
Door = Callable[..., Awaitable[None]]


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
async def test_a_payload_over_the_limit_writes_nothing(
    queue: Queue, store: redis.Redis, url: str, door: Door
) -> None:
    with pytest.raises(PayloadTooLarge, match="exceeds limit of 1000 bytes"):
        await door(queue, "x" * 1000, url, size_limit=1000)
    assert store.dbsize() == 0
    await door(queue, "x" * 500, url, size_limit=1000)
    assert store.dbsize() > 0


async def test_the_default_limit_is_ten_mebibytes(queue: Queue, store: redis.Redis) -> None:
    with pytest.raises(PayloadTooLarge, match="exceeds limit of 10"):
        await queue.add("n", "x" * (10 * MIB))
    assert store.dbsize() == 0
    await queue.add("n", "x" * (10 * MIB - 1000))
    assert store.llen("bull:q:wait") == 1


async def test_the_limit_can_be_sixteen_mebibytes_and_no_more(queue: Queue, store: redis.Redis) -> None:
    with pytest.raises(ValidationError, match=f"size_limit must be an integer from 1 to {16 * MIB}"):
        await queue.add("n", size_limit=16 * MIB + 1)
    with pytest.raises(PayloadTooLarge, match="exceeds limit of 16"):
        await queue.add("n", "x" * (16 * MIB), size_limit=16 * MIB)
    assert store.dbsize() == 0
    await queue.add("n", "x" * (16 * MIB - 1000), size_limit=16 * MIB)
    assert store.llen("bull:q:wait") == 1


async def test_options_count_towards_the_limit(queue: Queue, store: redis.Redis) -> None:
    data = "x" * 990
    await queue.add("n", data, size_limit=2000)
    store.flushall()
    with pytest.raises(PayloadTooLarge):
        await queue.add("n", data, size_limit=1000, job_id="i" * 100)
    assert store.dbsize() == 0
