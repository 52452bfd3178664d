"""A private server per test process; a queue name, a fleet and a store per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.fleet import Fleet, Store
from tests.chaos.lengths import FULL
from tests.servers import ValkeyServer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if FULL:  # leases of 30 s take their time
        for item in items:
            if "chaos" in item.path.parts:
                item.add_marker(pytest.mark.timeout(1200))


@pytest.fixture(scope="session")
def shared_server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def server(shared_server: ValkeyServer) -> ValkeyServer:
    """A server without data."""
    with shared_server.client() as client:
        client.flushall()
    return shared_server


@pytest.fixture
def store(server: ValkeyServer) -> Iterator[Store]:
    with server.client() as client:
        store = Store(client, "chaos")
        store.keep_events()
        yield store


@pytest.fixture
def fleet(server: ValkeyServer, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(server.url, "chaos", tmp_path) as fleet:
        yield fleet
