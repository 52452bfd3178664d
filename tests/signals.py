"""Waiting in async tests: for a condition, with a limit, never for time to pass."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

import redis

#: Seconds that a busy machine may need; a condition that holds earlier ends the wait.
LIMIT = 60.0


async def eventually(
    condition: Callable[[], object | Awaitable[object]], what: str, limit: float = LIMIT
) -> None:
    """Wait until the condition holds; an AssertionError naming it after the limit (seconds)."""
    loop = asyncio.get_running_loop()
    end = loop.time() + limit
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return
        if loop.time() > end:
            raise AssertionError(f"not within {limit:g} s: {what}")
        await asyncio.sleep(0.002)


def waits_for_marker(store: redis.Redis) -> bool:
    """Whether a client is blocked in its wait for a marker. A wait for a result reads events instead."""
    return any(one["cmd"] == "bzpopmin" and "b" in one["flags"] for one in store.client_list())
