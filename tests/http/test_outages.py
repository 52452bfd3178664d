"""The store, the API and the connection are lost in turn: it is said, work goes on, and nothing is lost."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from oxcart import Queue, Worker
from oxcart.http.application import app
from oxcart.http.client import Client
from oxcart.http.server import Server
from oxcart.model.errors import BrokerUnavailable
from tests.servers import ValkeyServer


async def until_ready(client: httpx.AsyncClient, status: int) -> None:
    async with asyncio.timeout(60):
        while (await client.get("/ready")).status_code != status:
            await asyncio.sleep(0.05)


async def ends(url: str, seen: dict[str, str], ready: asyncio.Event) -> None:
    """Follows the event stream and joins again after every loss, as a browser does."""
    position = "emails=0-0"
    while True:
        try:
            async with Client(url) as client:
                ready.set()
                async for event in client.events(since=position):
                    position = event.id
                    if event.name == "job.completed":
                        assert event.job_id not in seen, "an event came twice"
                        seen[event.job_id] = event.name
        except BrokerUnavailable:
            await asyncio.sleep(0.1)


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_nothing_is_lost_when_each_part_is_lost_in_turn() -> None:
    with ValkeyServer(appendonly=True, appendfsync="always") as store:
        queue = Queue("emails", url=store.url)

        @queue.job
        async def welcome(number: int) -> int:
            return number

        server = Server(app([queue]), grace=1)
        await server.start()
        port, seen, joined = server.port, dict[str, str](), asyncio.Event()
        async with (
            queue,
            Worker(queue, concurrency=10).running(),
            Queue("emails", url=server.url, add_timeout=90) as remote,
            httpx.AsyncClient(base_url=server.url, timeout=30) as probe,
        ):
            first = await remote.add("welcome", {"number": -1})
            follower = asyncio.create_task(ends(f"{server.url}", seen, joined))
            await joined.wait()
            stop = asyncio.Event()
            acknowledged: list[str] = []

            async def produce() -> None:
                number = 0
                while not stop.is_set():
                    acknowledged.append((await remote.add("welcome", {"number": number})).id)
                    number += 1

            producers = [asyncio.create_task(produce()) for _ in range(3)]
            # The store: the API says so, and recovers by itself.
            store.kill()
            await until_ready(probe, 503)
            store.start()
            await until_ready(probe, 200)
            before = len(acknowledged)
            # The API: adds and streams go on when it is back.
            await server.stop()
            server = Server(app([queue]), port=port, grace=1)
            await server.start()
            async with asyncio.timeout(60):
                while len(acknowledged) < before + 30:
                    await asyncio.sleep(0.05)
            # The connections: all of them break at once.
            for connection in list(server._server.server_state.connections):
                connection.transport.abort()
            async with asyncio.timeout(60):
                while len(acknowledged) < before + 60:
                    await asyncio.sleep(0.05)
            stop.set()
            await asyncio.gather(*producers)
            assert len(set(acknowledged)) == len(acknowledged)
            for job_id in (first.id, *acknowledged):
                assert isinstance(await remote.jobs.handle(job_id).result(60), int)
            counts = await queue.counts()
            assert counts["completed"] == len(acknowledged) + 1, "an add was applied twice"
            async with asyncio.timeout(60):
                while not set(acknowledged) <= seen.keys() and not follower.done():
                    await asyncio.sleep(0.05)
            assert set(acknowledged) <= seen.keys(), follower
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)
        await server.stop()
