"""A worker's entries in the registries of its queues: how it leaves them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oxcart import Queue, Worker
from oxcart.broker.memory import MemoryServer
from oxcart.broker.memory.broker import MemoryBroker
from oxcart.broker.memory.parts import MemoryRegistry

#: Seconds that the calls of one step may take together.
LIMIT = 20.0


async def test_a_stop_waits_for_all_queues_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryServer()
    queues = [Queue(name, broker=server) for name in ("a", "b", "c")]
    leaving, closing, met = asyncio.Barrier(3), asyncio.Barrier(3), []

    async def leave(self: MemoryRegistry, worker_id: str) -> None:
        await leaving.wait()
        met.append("left")

    async def close(self: Any) -> None:
        async with asyncio.timeout(LIMIT):
            await closing.wait()
        met.append("closed")

    worker = Worker(*queues)
    async with worker.running():
        monkeypatch.setattr("oxcart.engine.registration.LEAVE", LIMIT)
        monkeypatch.setattr(MemoryRegistry, "leave", leave)
        monkeypatch.setattr(MemoryBroker, "close", close)
    assert met == ["left"] * 3 + ["closed"] * 3
