"""Two private servers for each test process: the real BullMQ on one, Oxcart with a peer on the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.equality.oxcart_side import OxcartSide
from tests.equality.sides import NodeSide, Pair
from tests.nodes import node_driver, node_missing
from tests.servers import ValkeyServer


@pytest.fixture(scope="session")
def servers() -> Iterator[tuple[ValkeyServer, ValkeyServer]]:
    missing = node_missing()
    if missing is not None:
        pytest.skip(missing)
    with ValkeyServer() as one, ValkeyServer() as other:
        yield one, other


@pytest.fixture
async def pair(servers: tuple[ValkeyServer, ValkeyServer]) -> AsyncIterator[Pair]:
    one, other = (server.client(decode_responses=False) for server in servers)
    async with node_driver("v5", servers[0].url) as node, node_driver("v5", servers[1].url) as peer:
        oxcart = OxcartSide(servers[1].url, other, NodeSide(peer, other))
        try:
            yield Pair(NodeSide(node, one), oxcart)
        finally:
            await oxcart.close()
