"""One worker on queues of two servers: a fault of one server does not affect the other's queues."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from oxcart import Queue, RunningJob, Worker
from tests.chaos.fleet import Store, eventually
from tests.chaos.lengths import LIMIT
from tests.chaos.proxy import Proxy
from tests.servers import ValkeyServer


@pytest.fixture
def other_server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.mark.parametrize("fault", ["down", "hold"])
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
async def test_the_other_queue_goes_on(
    server: ValkeyServer, store: Store, other_server: ValkeyServer, fault: str, busy: bool
) -> None:
    """A server that is down or silent takes neither calls nor slots from the queue of the other."""
    async with Proxy(other_server.port) as proxy:
        well, ill = Queue("chaos", url=server.url), Queue("chaos", url=proxy.url)
        direct = Queue("chaos", url=other_server.url)
        release = asyncio.Event()

        @well.fallback
        async def work(job: RunningJob) -> int:
            return job.fencing

        @ill.fallback
        async def wait(job: RunningJob) -> int:
            await release.wait()
            return job.fencing

        async with Worker(well, ill, concurrency=3, lock_duration=60).running():
            await (await well.add("job")).result(LIMIT)
            waiting = [await direct.add("job") for _ in range(2)] if busy else []
            for handle in waiting:
                await eventually(lambda: proxy.calls["claim"] + proxy.calls["finish"] > 1, "claimed")
                assert handle.created
            if busy:
                await asyncio.sleep(0.2)
            if fault == "down":
                await proxy.down()
            else:
                proxy.hold()
            release.set()  # outcomes for the broken server cannot be committed now
            await asyncio.sleep(0.1)
            for _ in range(3):
                handles = await well.add_many([("job", n) for n in range(20)])
                for handle in handles:
                    assert await handle.result(LIMIT) == 1
            if fault == "down":
                await proxy.up()
            else:
                proxy.release()
            for handle in waiting:
                assert await handle.result(LIMIT) == 1
            assert await (await direct.add("job")).result(LIMIT) == 1
        for queue in (well, ill, direct):
            await queue.close()


async def test_leases_on_the_other_server_are_renewed(
    server: ValkeyServer, store: Store, other_server: ValkeyServer
) -> None:
    lease = 6.0
    async with Proxy(other_server.port) as proxy:
        well, ill = Queue("chaos", url=server.url), Queue("chaos", url=proxy.url)
        begun: list[str] = []
        release = asyncio.Event()

        async def work(job: RunningJob) -> int:
            begun.append(job.id)
            await release.wait()
            return job.fencing

        well.fallback(work)
        ill.fallback(work)
        # The broken server first: it must not delay the other.
        options: dict[str, Any] = {"lock_duration": lease, "renew_every": 0.5, "recover": False}
        async with Worker(ill, well, concurrency=2, **options).running():
            first, second = await ill.add("job"), await well.add("job")
            await eventually(lambda: len(begun) == 2, "both run")
            lock = f"{store.prefix}{second.id}:lock"
            for turn in range(3):
                # Longer than any lease: a renewal makes it short again.
                assert store.client.pexpire(lock, 60_000), "the lease is there"
                await eventually(lambda: store.lock_ms(second.id) <= 1000 * lease, "it is renewed")
                if turn == 0:
                    proxy.hold()
            proxy.release()
            release.set()
            assert [await first.result(LIMIT), await second.result(LIMIT)] == [1, 1]
        await well.close()
        await ill.close()
