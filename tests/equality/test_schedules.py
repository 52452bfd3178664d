"""State equality over schedules and limits: the same operations leave the same database.

As `test_equality`, with sequences of their own (`schedules`).

    OXCART_SCHEDULES_SEED=1234 OXCART_SCHEDULES_COUNT=1 pytest tests/equality/test_schedules.py   # one again
    OXCART_SCHEDULES_COUNT=2000 pytest -n 2 tests/equality/test_schedules.py                      # a long run
"""

from __future__ import annotations

import os

import pytest

from tests.equality.schedules import Schedules
from tests.equality.sides import Pair

pytestmark = pytest.mark.node

FIRST = int(os.environ.get("OXCART_SCHEDULES_SEED", "200000"))
COUNT = int(os.environ.get("OXCART_SCHEDULES_COUNT", "75"))
CHUNK = 25


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, CHUNK))
async def test_schedules_and_limits_of_ours_leave_what_nodes_leave(pair: Pair, first: int) -> None:
    await pair.compare(range(first, min(first + CHUNK, FIRST + COUNT)), Schedules)
