"""State equality: BullMQ 5.62.0 and Oxcart leave the same database after the same operations.

Every sequence runs against both, with the same clock, ids and tokens, and after every operation all keys,
types, scores, fields, expiries and events are compared, and so is the answer.

    OXCART_EQUALITY_SEED=1234 OXCART_EQUALITY_COUNT=1 pytest tests/equality/test_equality.py   # one again
    OXCART_EQUALITY_COUNT=20000 pytest -n 2 tests/equality/test_equality.py                    # a long run
"""

from __future__ import annotations

import os

import pytest

from tests.equality.sides import Pair

pytestmark = pytest.mark.node

FIRST = int(os.environ.get("OXCART_EQUALITY_SEED", "0"))
COUNT = int(os.environ.get("OXCART_EQUALITY_COUNT", "500"))
CHUNK = 25


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, CHUNK))
async def test_oxcart_leaves_what_node_leaves(pair: Pair, first: int) -> None:
    await pair.compare(range(first, min(first + CHUNK, FIRST + COUNT)))
