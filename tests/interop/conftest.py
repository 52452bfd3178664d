"""One server and one Node process per BullMQ version for the whole run, and a new queue per test."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from oxcart import Queue
from tests.nodes import NodeDriver, installed, node_missing, versions
from tests.servers import ValkeyServer

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[ValkeyServer]:
    missing = node_missing()
    if missing is not None:
        pytest.skip(missing)
    with ValkeyServer() as server:
        yield server


class Drivers:
    """The Node process of each version, started when first asked for."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._started: dict[str, NodeDriver] = {}

    async def get(self, version: str) -> NodeDriver:
        if version not in self._started:
            folder = await asyncio.to_thread(installed, version)
            self._started[version] = await NodeDriver.start(folder, self._url)
        return self._started[version]

    async def stop(self) -> None:
        for driver in self._started.values():
            await driver.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def drivers(server: ValkeyServer) -> AsyncIterator[Drivers]:
    drivers = Drivers(server.url)
    yield drivers
    await drivers.stop()


@pytest_asyncio.fixture(loop_scope="session", params=versions())
async def node(drivers: Drivers, request: pytest.FixtureRequest) -> NodeDriver:
    """The real BullMQ, in each version that is tested."""
    return await drivers.get(request.param)


@pytest_asyncio.fixture(loop_scope="session")
async def queue(server: ValkeyServer) -> AsyncIterator[Queue]:
    """A queue that no test has used."""
    async with Queue(f"q{os.getpid()}-{next(_numbers)}", url=server.url) as queue:
        yield queue
