"""A worker's entries in the registries of its queues: how long they last, and how it leaves them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from oxcart import Queue, Worker
from oxcart.broker.memory import MemoryServer
from oxcart.broker.memory.broker import MemoryBroker
from oxcart.broker.memory.parts import MemoryRegistry
from oxcart.broker.sampling import crews
from tests.conftest import MakeQueue
from tests.servers import ValkeyServer
from tests.signals import eventually

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


#: A worker of many queues with short leases in the registry; its records last 50 times longer without them.
MANY = """
import asyncio, sys
from oxcart import Queue, Worker
from oxcart.engine import registration
registration.EVERY, registration.LIFE = 0.3, 1.5
queues = [Queue(f"q{number:02}", url=sys.argv[1]) for number in range(40)]
for queue in queues:
    queue.fallback(lambda job: None)
asyncio.run(Worker(*queues, name="many").run())
"""


async def test_a_killed_worker_of_many_queues_is_gone_from_all_lists_within_its_lease(
    make_queue: MakeQueue, valkey: ValkeyServer
) -> None:
    queues = [make_queue(f"q{number:02}") for number in range(40)]

    async def seen() -> list[list[str]]:
        return [[one.name for one in await queue.workers.list()] for queue in queues]

    async def listed() -> bool:
        return await seen() == [["many"]] * 40

    async def renewed() -> bool:
        return [one.last_seen > first.last_seen for one in await queues[39].workers.list()] == [True]

    async def gone() -> bool:
        return await seen() == [[]] * 40

    process = subprocess.Popen([sys.executable, "-c", MANY, valkey.url])
    try:
        await eventually(listed, "all queues list it")
        (first,) = await queues[39].workers.list()
        await eventually(renewed, "the list shows a newer sign of life", limit=10)
    finally:
        process.kill()
        process.wait()
    await eventually(gone, "no queue lists it", limit=10)
    assert [one.workers for one in await crews([queue._core.broker for queue in queues])] == [[]] * 40
