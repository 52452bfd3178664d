"""State equality over flows and deduplication: the same trees, children and windows leave the same database.

As `test_equality`, with sequences of their own (`families`).

    OXCART_FAMILIES_SEED=1234 OXCART_FAMILIES_COUNT=1 pytest tests/equality/test_families.py   # one again
    OXCART_FAMILIES_COUNT=2000 pytest -n 2 tests/equality/test_families.py                     # a long run
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from tests.equality.families import Families
from tests.equality.oxcart_side import OxcartSide
from tests.equality.sides import DivergenceError, NodeSide, Pair
from tests.nodes import node_driver
from tests.servers import ValkeyServer

pytestmark = pytest.mark.node

FIRST = int(os.environ.get("OXCART_FAMILIES_SEED", "100000"))
COUNT = int(os.environ.get("OXCART_FAMILIES_COUNT", "75"))
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
async def test_flows_and_windows_of_ours_leave_what_nodes_leave(pair: Pair, first: int) -> None:
    for seed in range(first, min(first + CHUNK, FIRST + COUNT)):
        try:
            await pair.generate(seed, Families)
        except DivergenceError as found:
            small = await pair.shrink(found.ops, Families(seed).metas)
            small.seed = seed
            small.lines += ["before operations were dropped:", *found.lines]
            raise small from None
