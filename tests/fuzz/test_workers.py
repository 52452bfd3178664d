"""Living workers on spoiled keys: none spins, and all go on once nothing is spoiled.

`OXCART_FUZZ` and `OXCART_FUZZ_SEED` set rounds and first seed, as in test_scripts.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from typing import Any

import pytest

from oxcart import Queue, Worker
from oxcart.model.errors import OxcartError
from tests.chaos.proxy import Proxy
from tests.fuzz.hostile import Hostile
from tests.fuzz.test_scripts import FIRST
from tests.servers import ValkeyServer
from tests.signals import eventually

ROUNDS = int(os.environ.get("OXCART_FUZZ", "2"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 + 20 * ROUNDS)]

#: How often keys are spoiled in a round, and the seconds between.
SPOILS, PAUSE = 60, 0.02
#: Commands that a worker may send in a second, waits included. A healthy idle one sends a few; one that spins
#: sends thousands.
MOST_CALLS = 300
#: Seconds until a job of the healed server has run.
LIMIT = 60.0


@pytest.mark.parametrize("protocol", ["bullmq", "bridge"])
@pytest.mark.parametrize("seed", range(FIRST, FIRST + ROUNDS))
async def test_a_worker_neither_spins_nor_dies_on_spoiled_keys(protocol: str, seed: int) -> None:
    where: dict[str, Any] = {"protocol": "bridge", "namespace": "ns"} if protocol == "bridge" else {}
    with ValkeyServer() as server, server.client(decode_responses=False) as client:
        hostile = Hostile(client, random.Random(seed))
        # Only the worker's commands pass the proxy: not those of the test, nor those within scripts.
        async with (
            Proxy(server.port) as proxy,
            Queue("q", url=proxy.url, **where) as queue,
            Queue("q", url=server.url, **where) as producer,
        ):
            done = asyncio.Event()

            @queue.job
            async def task(last: bool = False) -> None:
                if last:
                    done.set()

            worker = Worker(queue, concurrency=5, lock_duration=2.0, stalled_interval=0.5)
            async with worker.running():
                before, began = proxy.calls.copy(), asyncio.get_running_loop().time()
                spoils = []
                for number in range(SPOILS):
                    if number % 3 == 0:
                        await _added(producer)
                    spoils.append(hostile.spoil())
                    await asyncio.sleep(PAUSE)
                # What is spoiled stays so for a while: a worker that repeats failing calls would spin.
                await asyncio.sleep(1.0)
                seconds = asyncio.get_running_loop().time() - began
                sent = proxy.calls - before
                assert sent.total() < MOST_CALLS * seconds, f"{sent} in {seconds:.1f} s, after {spoils}"
                client.flushall()
                await producer.add("task", {"last": True})
                await asyncio.wait_for(done.wait(), LIMIT)


async def test_a_worker_whose_waits_are_refused_does_not_spin() -> None:
    with ValkeyServer() as server, server.client(decode_responses=False) as client:
        client.set("bull:q:marker", "x")
        async with Proxy(server.port) as proxy, Queue("q", url=proxy.url) as queue:
            queue.fallback(lambda: None)
            async with Worker(queue).running():
                await eventually(lambda: proxy.calls["bzpopmin"] > 0, "the worker waits")
                before, began = proxy.calls.copy(), asyncio.get_running_loop().time()
                await asyncio.sleep(1.0)
                seconds = asyncio.get_running_loop().time() - began
                sent = proxy.calls - before
                assert sent.total() < MOST_CALLS * seconds, f"{sent} in {seconds:.1f} s"


async def _added(queue: Queue) -> None:
    """Adds jobs as far as the server takes them."""
    with contextlib.suppress(OxcartError):  # another error fails the test
        await queue.add_many([("task", {"last": False})] * 3)
