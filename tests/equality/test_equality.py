"""State equality: the same operations leave the same database, whether BullMQ 5.62.0 or Oxcart does them.

Every sequence runs against both, with the same clock, ids and tokens, and after every operation all keys,
types, scores, fields, expiries and events are compared, and so is the answer.

    OXCART_EQUALITY_SEED=1234 OXCART_EQUALITY_COUNT=1 pytest tests/equality/test_equality.py   # one again
    OXCART_EQUALITY_COUNT=20000 pytest -n 2 tests/equality/test_equality.py                    # a long run
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from tests.equality.oxcart_side import OxcartSide
from tests.equality.sequences import Generator
from tests.equality.sides import DivergenceError, NodeSide, Pair
from tests.nodes import node_driver
from tests.servers import ValkeyServer

pytestmark = pytest.mark.node

FIRST = int(os.environ.get("OXCART_EQUALITY_SEED", "0"))
COUNT = int(os.environ.get("OXCART_EQUALITY_COUNT", "500"))
CHUNK = 25


@pytest.fixture
async def pair(servers: tuple[ValkeyServer, ValkeyServer]) -> AsyncIterator[Pair]:
    one, other = (server.client(decode_responses=False) for server in servers)
    async with node_driver("v5", servers[0].url) as node, node_driver("v5", servers[1].url) as peer:
        oxcart = OxcartSide(servers[1].url, other, NodeSide(peer, other))
        try:
            yield Pair(NodeSide(node, one), oxcart)
        finally:
            await oxcart.close()


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, CHUNK))
async def test_oxcart_leaves_what_node_leaves(pair: Pair, first: int) -> None:
    for seed in range(first, min(first + CHUNK, FIRST + COUNT)):
        try:
            await pair.generate(seed)
        except DivergenceError as found:
            small = await pair.shrink(found.ops, Generator(seed).metas)
            small.seed = seed
            raise small from None
