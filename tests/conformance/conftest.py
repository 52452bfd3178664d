"""Every broker on every server: one suite runs over all of them.

What a protocol cannot express is in its table of capabilities (``oxcart.broker.capabilities``); a test that
needs such a feature runs where it is there, and ``test_missing.py`` shows that it is refused elsewhere.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio

from oxcart import Queue
from oxcart.broker.capabilities import Capabilities
from oxcart.broker.factory import CAPABILITIES, ProtocolName
from oxcart.broker.port import ServedBroker
from oxcart.model.options import JobOptions
from tests.servers import ValkeyCluster, ValkeyServer, redis_path

_numbers = itertools.count()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[ValkeyServer]:
    """Redis itself, of the oldest version that is served."""
    with ValkeyServer(binary=redis_path()) as server:
        yield server


@pytest.fixture(scope="session")
def cluster() -> Iterator[ValkeyCluster]:
    """Three masters with a replica each."""
    with ValkeyCluster(replicas=1, node_timeout=15_000) as cluster:
        yield cluster


@dataclass
class Venue:
    """A protocol on a server, in a place of its own."""

    protocol: ProtocolName
    url: str
    servers: list[ValkeyServer]
    place: str = field(default_factory=lambda: f"conf{next(_numbers)}")
    made: list[Queue] = field(default_factory=list)

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES[self.protocol]

    def queue(self, name: str = "email", **options: Any) -> Queue:
        where: dict[str, Any] = {"namespace" if self.protocol == "bridge" else "prefix": self.place}
        queue = Queue(name, url=self.url, protocol=self.protocol, **where, **options)
        self.made.append(queue)
        return queue

    def all_keys(self) -> list[str]:
        """Every key of this place, on whichever server."""
        found: list[str] = []
        for server in self.servers:
            with server.client() as client:
                found += client.scan_iter(f"*{self.place}*")
        return found


VENUES = (
    "bullmq-valkey",
    "bullmq-redis",
    "bullmq-cluster",
    "bridge-valkey",
    "bridge-redis",
    "bridge-cluster",
)


@pytest_asyncio.fixture(params=VENUES)
async def venue(request: pytest.FixtureRequest) -> AsyncIterator[Venue]:
    protocol, server = request.param.split("-")
    if server == "cluster":
        cluster: ValkeyCluster = request.getfixturevalue("cluster")
        made = Venue(protocol, cluster.url, cluster.nodes)
    else:
        one: ValkeyServer = request.getfixturevalue("valkey" if server == "valkey" else "redis_server")
        made = Venue(protocol, one.url, [one])
    yield made
    for queue in made.made:
        await queue.close()


@dataclass
class Bench:
    """A broker at the test's hand."""

    queue: Queue
    broker: ServedBroker

    async def add(self, data: Any = None, **options: Any) -> str:
        read: JobOptions = self.queue.read_options(options)  # type: ignore[arg-type]
        (added,) = await self.broker.add([self.broker.encode("email", data, read)])
        assert added.created
        return added.id


@pytest_asyncio.fixture
async def bench(venue: Venue) -> AsyncIterator[Bench]:
    queue = venue.queue()
    broker = queue.open_broker()
    yield Bench(queue, broker)
    await broker.close()
