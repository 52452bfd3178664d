"""State equality over flows and deduplication: the same trees, children and windows leave the same database.

As `test_equality`, with sequences of their own (`families`).

    OXCART_FAMILIES_SEED=1234 OXCART_FAMILIES_COUNT=1 pytest tests/equality/test_families.py   # one again
    OXCART_FAMILIES_COUNT=2000 pytest -n 2 tests/equality/test_families.py                     # a long run
"""

from __future__ import annotations

import os

import pytest

from tests.equality.families import Families
from tests.equality.sides import Pair

pytestmark = pytest.mark.node

FIRST = int(os.environ.get("OXCART_FAMILIES_SEED", "100000"))
COUNT = int(os.environ.get("OXCART_FAMILIES_COUNT", "75"))
CHUNK = 25


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, CHUNK))
async def test_flows_and_windows_of_ours_leave_what_nodes_leave(pair: Pair, first: int) -> None:
    await pair.compare(range(first, min(first + CHUNK, FIRST + COUNT)), Families)
