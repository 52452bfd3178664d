"""State equality over operations on whole queues: clean, clear, retry and promotion.

As `test_equality`, with sequences of their own (`operating`).

    OXCART_OPERATING_SEED=1234 OXCART_OPERATING_COUNT=1 pytest tests/equality/test_operating.py   # one again
    OXCART_OPERATING_COUNT=2000 pytest -n 2 tests/equality/test_operating.py                      # a long run
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from tests.equality.operating import Operating, OperatingNode, OperatingOxcart
from tests.equality.sides import Pair
from tests.nodes import node_driver
from tests.servers import ValkeyServer

pytestmark = pytest.mark.node

FIRST = int(os.environ.get("OXCART_OPERATING_SEED", "300000"))
COUNT = int(os.environ.get("OXCART_OPERATING_COUNT", "50"))
CHUNK = 25


@pytest.fixture
async def pair(servers: tuple[ValkeyServer, ValkeyServer]) -> AsyncIterator[Pair]:
    one, other = (server.client(decode_responses=False) for server in servers)
    async with node_driver("v5", servers[0].url) as node, node_driver("v5", servers[1].url) as peer:
        oxcart = OperatingOxcart(servers[1].url, other, OperatingNode(peer, other))
        try:
            yield Pair(OperatingNode(node, one), oxcart)
        finally:
            await oxcart.close()


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, CHUNK))
async def test_operations_of_ours_leave_what_nodes_leave(pair: Pair, first: int) -> None:
    await pair.compare(range(first, min(first + CHUNK, FIRST + COUNT)), Operating)
