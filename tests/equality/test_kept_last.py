"""Deduplication after BullMQ 5.62.0: the last add during a run is kept.

Compared with 6.7.0, on jobs without flows, pauses and retries from the end, where 6.x differs for other
reasons. We still emit `debounced`, which 6.x no longer does.

    OXCART_KEPT_SEED=12 OXCART_KEPT_COUNT=1 pytest tests/equality/test_kept_last.py
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.equality.dump import Dump
from tests.equality.families import Families
from tests.equality.ops import QUEUE, Op
from tests.equality.oxcart_side import OxcartSide
from tests.equality.sides import DivergenceError, NodeSide, Pair, Side
from tests.nodes import node_driver
from tests.servers import ValkeyServer

pytestmark = pytest.mark.node

FIRST = int(os.environ.get("OXCART_KEPT_SEED", "200000"))
COUNT = int(os.environ.get("OXCART_KEPT_COUNT", "25"))


class KeptLast(Families):
    """Only windows, many of which keep the last add."""

    def __init__(self, seed: int, length: int | None = None) -> None:
        super().__init__(seed, length)
        self._mixed = self._peers = self._parents = False

    def _weighted(self) -> Iterable[tuple[Callable[[], Op | None], float]]:
        yield self._add_deduplicated, 20
        yield self._claim, 12
        if self._claims:
            yield self._complete, 10
            yield self._fail, 8
            yield self._move_to_delayed, 6
            yield self._give_back, 3
        yield self._remove, 4
        yield self._promote, 3
        if self._view.deduplication(QUEUE):
            yield self._remove_deduplication, 2
            yield self._expire_deduplication, 1

    def _rule(self, replace: bool = True) -> dict[str, Any]:
        rule = super()._rule(replace)
        if self._random.random() < 0.7:
            rule["keepLastIfActive"] = True
        return rule

    def _job(self, peer: bool = False) -> dict[str, Any]:
        job = super()._job(peer)
        job["opts"].pop("lifo", None)
        return job

    def _fetch(self, held: dict[str, Any], completes: bool = False) -> bool:
        # Since 5.73 a retry fetches the next job in the same call.
        return completes and super()._fetch(held, completes)


class Without:
    """A side without `debounced` events and paused states, which differ for other reasons."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self.reset, self.run = side.reset, side.run

    async def read(self, now: int) -> dict[str, Any]:
        return {}

    def dump(self) -> Dump:
        dump = self._side.dump()
        for key, entry in dump.items():
            if key.endswith(":events"):
                entries = [fields for fields in entry.value if fields[1] != "debounced"]
                dump[key] = replace(entry, value=entries)
        return dump


@pytest.fixture
async def pair(servers: tuple[ValkeyServer, ValkeyServer]) -> AsyncIterator[Pair]:
    one, other = (server.client(decode_responses=False) for server in servers)
    async with node_driver("v6", servers[0].url) as node, node_driver("v6", servers[1].url) as peer:
        oxcart = OxcartSide(servers[1].url, other, NodeSide(peer, other))
        try:
            yield Pair(Without(NodeSide(node, one)), Without(oxcart))
        finally:
            await oxcart.close()


async def test_windows_of_ours_leave_what_those_of_six_leave(pair: Pair) -> None:
    for seed in range(FIRST, FIRST + COUNT):
        try:
            await pair.generate(seed, KeptLast)
        except DivergenceError as found:
            found.seed = seed
            raise
