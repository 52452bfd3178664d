"""Shared by the tests of the drop-in: queues and workers on the test's server, closed at its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest_asyncio
from redis.asyncio import Redis

from oxcart.compat.bullmq import FlowProducer, Job, Queue, QueueEvents, Worker
from tests.signals import eventually

Make = Callable[..., Any]


async def soon(condition: Callable[[], object]) -> None:
    """Waits until a condition holds."""
    await eventually(condition, "the condition of the calling line")


async def reaches(job: Job, state: str) -> None:
    """Waits until a job is in a state."""

    async def is_there() -> bool:
        return await job.getState() == state

    await eventually(is_there, f"job {job.id} is {state}")


@pytest_asyncio.fixture
async def make(url: str) -> AsyncIterator[Make]:
    """Makes queues, workers and others on the server: ``make(Worker, "q", process, concurrency=5)``."""
    made: list[Any] = []

    def build(kind: type[Any], *args: Any, **opts: Any) -> Any:
        one = kind(*args, {"connection": url, **opts})
        made.append(one)
        return one

    yield build
    for one in sorted(made, key=lambda one: not isinstance(one, Worker)):
        if isinstance(one, Worker):
            await one.close(force=True)
        elif isinstance(one, Queue | FlowProducer | QueueEvents):
            await one.close()


@pytest_asyncio.fixture
async def client(url: str) -> AsyncIterator[Redis]:
    """A client of redis-py, as users bring one."""
    client = Redis.from_url(url)
    yield client
    await client.aclose()
