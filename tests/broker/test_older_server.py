"""Redis 6.2 wraps refusals inside of scripts in text: the errors are the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import redis

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.connection import Reconnect, Server
from oxcart.broker.port import Ask
from oxcart.model.errors import AccessDenied, ScriptError
from oxcart.model.options import JobOptions
from tests.servers import ValkeyServer, redis_path


@pytest.fixture(scope="module")
def older() -> Iterator[ValkeyServer]:
    with ValkeyServer(binary=redis_path()) as server:
        yield server


@pytest.fixture
def store(older: ValkeyServer) -> Iterator[redis.Redis]:
    store = older.client()
    yield store
    store.config_set("maxmemory", 0)
    store.flushall()


@pytest.fixture
async def broker(older: ValkeyServer, store: redis.Redis) -> AsyncIterator[BullMQBroker]:
    broker = BullMQBroker(Server(older.url), "q", reconnect=Reconnect(held=0.01))
    yield broker
    await broker.close()


async def add(broker: BullMQBroker) -> None:
    (added,) = await broker.add([broker.encode("n", None, JobOptions.build())])
    assert added.created


async def test_an_add_without_memory_is_refused_with_the_reason(
    broker: BullMQBroker, store: redis.Redis
) -> None:
    store.config_set("maxmemory", 1)
    with pytest.raises(ScriptError, match=r"^add: OOM command not allowed"):
        await add(broker)
    store.config_set("maxmemory", 0)
    await add(broker)


async def test_a_claim_waits_for_memory(broker: BullMQBroker, store: redis.Redis) -> None:
    await add(broker)
    store.config_set("maxmemory", 1)
    claiming = asyncio.create_task(broker.claim(Ask(1)))
    done, _ = await asyncio.wait([claiming], timeout=0.2)
    assert not done, "it was refused, and asks again"
    store.config_set("maxmemory", 0)
    assert len((await claiming).jobs) == 1


async def test_a_call_that_came_late_is_refused_as_such(broker: BullMQBroker, store: redis.Redis) -> None:
    await add(broker)
    slot = next(key for key in store.keys("bull:q:ox:call:*"))
    store.set(slot, b"999:\x90")
    with pytest.raises(ScriptError, match="OXSTALE call"):
        await add(broker)


async def test_a_user_without_the_right_gets_access_denied(
    broker: BullMQBroker, older: ValkeyServer, store: redis.Redis
) -> None:
    store.acl_setuser("weak", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-xadd", "-hgetall"])
    await add(broker)
    weak = BullMQBroker(Server(older.url.replace("//", "//weak:x@")), "q")
    with pytest.raises(AccessDenied):
        await weak.claim(Ask(1))
    await weak.close()
    assert store.llen("bull:q:wait") == 1
