"""Plain jobs of one call, which pass what they share once: the same state as adding them one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import redis

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.connection import Server
from oxcart.model.errors import ScriptError
from oxcart.model.options import JobOptions

NOW = 1_700_000_000_000
#: The last id that a stream can have but three.
ALMOST_LAST = f"{2**64 - 1}-{2**64 - 4}"


@pytest_asyncio.fixture
async def broker(url: str) -> AsyncIterator[BullMQBroker]:
    made = BullMQBroker(Server(url), "q", clock=lambda: NOW)
    yield made
    await made.close()


@pytest_asyncio.fixture
async def single(url: str) -> AsyncIterator[BullMQBroker]:
    made = BullMQBroker(Server(url), "single", clock=lambda: NOW)
    yield made
    await made.close()


def rows() -> list[tuple[str, Any, dict[str, Any]]]:
    """Jobs of several names, options and times, in runs of several lengths."""
    return [
        ("mail", {"n": 1}, {"job_id": "a"}),
        ("mail", {"n": 2}, {"job_id": "b"}),
        ("call", None, {"job_id": "c"}),
        ("call", None, {"job_id": "d", "timestamp": 5}),
        ("call", [], {"job_id": "e", "timestamp": 5, "attempts": 9}),
        ("mail", {"n": 1}, {"job_id": "f"}),
        ("mail", "é", {"job_id": "g"}),
    ]


def encoded(broker: BullMQBroker, jobs: list[tuple[str, Any, dict[str, Any]]]) -> list[Any]:
    return [broker.encode(name, data, JobOptions.build(**options)) for name, data, options in jobs]


def state(store: redis.Redis, queue: str) -> dict[str, Any]:
    """Returns what a queue holds, without the journal and the times of its events."""
    raw: Any = store
    readers: dict[Any, Any] = {
        "hash": store.hgetall,
        "list": lambda key: store.lrange(key, 0, -1),
        "stream": lambda key: [fields for _, fields in raw.xrange(key)],
        "string": store.get,
        "zset": lambda key: store.zrange(key, 0, -1, withscores=True),
    }
    prefix = f"bull:{queue}:"
    keys = [key for key in map(str, store.scan_iter(f"{prefix}*")) if ":ox:call" not in key]
    return {key.removeprefix(prefix): readers[store.type(key)](key) for key in keys}


async def add_singly(broker: BullMQBroker, jobs: list[tuple[str, Any, dict[str, Any]]]) -> list[bool]:
    return [(await broker.add([one]))[0].created for one in encoded(broker, jobs)]


@pytest.mark.parametrize("before", [[], ["paused"], ["b"], ["a", "g"]], ids="-".join)
async def test_a_batch_leaves_the_state_of_single_adds(
    broker: BullMQBroker, single: BullMQBroker, store: redis.Redis, before: list[str]
) -> None:
    for one in (broker, single):
        if before == ["paused"]:
            await one.pause()
        else:
            await add_singly(one, [("old", None, {"job_id": job_id}) for job_id in before])
    added = await broker.add(encoded(broker, rows()))
    assert [one.created for one in added] == await add_singly(single, rows())
    assert [one.id for one in added] == [*"abcdefg"]
    assert state(store, "q") == state(store, "single")


async def test_one_id_twice_in_a_batch_is_one_job(
    broker: BullMQBroker, single: BullMQBroker, store: redis.Redis
) -> None:
    twice = [*rows(), ("mail", {"n": 3}, {"job_id": "b"})]
    added = await broker.add(encoded(broker, twice))
    assert [one.created for one in added] == await add_singly(single, twice)
    assert [one.created for one in added] == [True] * 7 + [False]
    assert state(store, "q") == state(store, "single")


async def test_generated_ids(broker: BullMQBroker, store: redis.Redis) -> None:
    added = await broker.add(encoded(broker, [("mail", {"n": n}, {}) for n in range(400)]))
    ids: Any = store.lrange("bull:q:wait", 0, -1)
    assert ids == [one.id for one in reversed(added)]
    assert store.get("bull:q:id") == "400"
    assert [store.hget(f"bull:q:{one.id}", "data") for one in added] == [f'{{"n":{n}}}' for n in range(400)]


async def test_a_refused_job_leaves_its_neighbours(broker: BullMQBroker, store: redis.Redis) -> None:
    """The stream has room for three entries: the second job has one of its two events."""
    store.xadd("bull:q:events", {"event": "x"}, id=ALMOST_LAST)
    first, second, third = await broker.add_each(encoded(broker, rows()[:3]))
    assert not isinstance(first, Exception)
    assert first.created
    for refused in (second, third):
        assert isinstance(refused, ScriptError)
        assert "exhausted" in str(refused)
    assert store.lrange("bull:q:wait", 0, -1) == ["a"]
    assert [store.exists(f"bull:q:{job_id}") for job_id in "abc"] == [1, 0, 0]


async def test_no_job_has_a_place_where_events_cannot_be_written(
    broker: BullMQBroker, store: redis.Redis
) -> None:
    store.set("bull:q:events", "no stream")
    refused = await broker.add_each(encoded(broker, rows()))
    assert [type(one) for one in refused] == [ScriptError] * 7
    assert (store.exists("bull:q:wait"), store.zcard("bull:q:marker")) == (0, 0)
    assert [store.exists(f"bull:q:{job_id}") for job_id in "abcdefg"] == [0] * 7
