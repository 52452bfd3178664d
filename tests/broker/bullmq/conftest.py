"""Fixtures of BullMQ's verbs: a queue, and the whole content of the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
import redis

from oxcart.broker.bullmq import bulk
from tests.broker.bullmq.making import Q


@pytest_asyncio.fixture
async def q(url: str) -> AsyncIterator[Q]:
    made = Q(url)
    yield made
    await made.broker.close()


@pytest.fixture
def whole(store: redis.Redis) -> Callable[[], dict[str, Any]]:
    """Returns the whole database except the journal."""
    readers: dict[Any, Callable[[str], Any]] = {
        "hash": store.hgetall,
        "list": lambda key: store.lrange(key, 0, -1),
        "set": store.smembers,
        "stream": store.xrange,
        "string": store.get,
        "zset": lambda key: store.zrange(key, 0, -1, withscores=True),
    }

    def read() -> dict[str, Any]:
        keys = [key for key in map(str, store.scan_iter()) if ":ox:call" not in key]
        return {key: readers[store.type(key)](key) for key in sorted(keys)}

    return read


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "STEP", 3)
    monkeypatch.setattr(bulk, "MOST", 3)
