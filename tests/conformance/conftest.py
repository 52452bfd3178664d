"""One suite runs over every broker: both protocols on each kind of server, and the broker in memory.

The table of capabilities (``oxcart.broker.capabilities.FEATURES``) states what a protocol lacks. A test calls
``venue.needs`` for such a feature and is skipped only there; ``test_missing.py`` shows that it is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
import pytest_asyncio

from oxcart import Queue
from oxcart.broker.capabilities import FEATURES, PARTITIONED, Capabilities
from oxcart.broker.factory import CAPABILITIES, ProtocolName
from oxcart.broker.memory import MemoryServer
from oxcart.broker.port import ServedBroker
from oxcart.model.options import JobOptions
from tests.servers import ValkeyCluster, ValkeyServer, redis_path

_numbers = itertools.count()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[ValkeyServer]:
    """The oldest supported version of Redis itself."""
    with ValkeyServer(binary=redis_path()) as server:
        yield server


@pytest.fixture(scope="session")
def cluster() -> Iterator[ValkeyCluster]:
    """Three masters with a replica each."""
    with ValkeyCluster(replicas=1, node_timeout=15_000) as cluster:
        yield cluster


@dataclass
class Venue:
    """A protocol on a server, or memory; queues have a prefix of their own."""

    protocol: ProtocolName | Literal["memory", "partitioned"]
    url: str
    servers: list[ValkeyServer]
    memory: MemoryServer | None = None
    place: str = field(default_factory=lambda: f"conf{next(_numbers)}")
    made: list[Queue] = field(default_factory=list)

    @property
    def capabilities(self) -> Capabilities:
        if self.protocol == "partitioned":
            return PARTITIONED
        return CAPABILITIES[self.protocol] if self.memory is None else self.memory.capabilities

    def queue(self, name: str = "email", **options: Any) -> Queue:
        where: dict[str, Any] = {"namespace" if self.protocol == "bridge" else "prefix": self.place}
        if self.protocol == "partitioned":
            where |= {"url": self.url, "partitions": 4}
        elif self.memory is None:
            where |= {"url": self.url, "protocol": self.protocol}
        else:
            where |= {"broker": self.memory}
        queue = Queue(name, **where, **options)
        self.made.append(queue)
        return queue

    def needs(self, *features: str) -> None:
        """Skips the test if the protocol states that it lacks a feature."""
        for feature in features:
            if not self.capabilities.can(feature):
                pytest.skip(f"{self.protocol} lacks {FEATURES[feature].words} ({feature})")

    def needs_server(self) -> None:
        """Skips the test if the queue is in memory."""
        if not self.servers:
            pytest.skip("memory keeps no keys on a server")

    def all_keys(self) -> list[str]:
        """Returns every key with this prefix, on all servers, but for the layouts of partitioned queues."""
        found = [] if self.memory is None else self.memory.keys()
        for server in self.servers:
            with server.client() as client:
                found += client.scan_iter(f"*{self.place}*")
        return [key for key in found if not str(key).endswith(":ox:partitions")]


VENUES = (
    "bullmq-valkey",
    "bullmq-redis",
    "bullmq-cluster",
    "bridge-valkey",
    "bridge-redis",
    "bridge-cluster",
    "memory",
    "partitioned-valkey",
    "partitioned-cluster",
)


@pytest_asyncio.fixture(params=VENUES)
async def venue(request: pytest.FixtureRequest) -> AsyncIterator[Venue]:
    protocol, _, server = request.param.partition("-")
    if protocol == "memory":
        made = Venue("memory", "", [], MemoryServer())
    elif server == "cluster":
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
    """A queue and a broker of it, for tests that call verbs."""

    queue: Queue
    broker: ServedBroker
    venue: Venue

    async def server_ms(self) -> int:
        """Asks the server itself for its time."""
        if not self.venue.servers:
            return await self.broker.now()
        seconds, micros = await self.broker.caller.command("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def add(self, data: Any = None, **options: Any) -> str:
        read: JobOptions = self.queue._core.read_options(options)  # type: ignore[arg-type]
        (added,) = await self.broker.add([self.broker.encode("email", data, read)])
        assert added.created
        return added.id


@pytest_asyncio.fixture
async def bench(venue: Venue) -> AsyncIterator[Bench]:
    queue = venue.queue()
    broker = queue._core.open_broker()
    yield Bench(queue, broker, venue)
    await broker.close()
