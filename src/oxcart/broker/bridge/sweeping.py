"""Keeps the index of a namespace from growing with jobs that other clients remove from the list."""

from __future__ import annotations

import asyncio

from oxcart.broker.bridge.keys import BridgeKeys
from oxcart.broker.bridge.scripts import load
from oxcart.broker.caller import Caller
from oxcart.broker.replies import texts

#: By how many entries the index may be longer than the list before it is swept at once. With fewer it is
#: swept after so many seconds, or so many times as long as the last sweep took.
SLACK = 1000
PAUSE = 30.0
PAUSES = 20
#: Ids per read, and ids that one call drops.
PAGE = 1000
FORGET = 100
#: Facts that one sweep checks.
FACTS = 100
#: States of jobs that no longer need facts.
_OVER = frozenset({b"completed", b"dead", b"failed"})


class Sweeper:
    """The sweeps of one client.

    Args:
        keys: The namespace's keys.
        caller: The connection.
        slack: By how many entries the index may be longer than the list.
    """

    def __init__(self, keys: BridgeKeys, caller: Caller, *, slack: int = SLACK) -> None:
        self._keys = keys
        self._caller = caller
        self._slack = slack
        self._cursor = b"0"
        self._next = 0.0

    async def sweep(self) -> int:
        """Drops entries that are only in the index; returns how many."""
        listed, waiting = await self._caller.pipeline(
            [("SCARD", self._keys.listed()), ("LLEN", self._keys.waiting())]
        )
        gone = await self._sweep_facts()
        began = asyncio.get_running_loop().time()
        if listed > waiting + self._slack or (listed > waiting and began >= self._next):
            gone += await self._sweep_index()
            ended = asyncio.get_running_loop().time()
            self._next = ended + max(PAUSE, PAUSES * (ended - began))
        return gone

    async def _sweep_index(self) -> int:
        there = set(await self._caller.command("ZRANGE", self._keys.pending(), 0, -1))
        at = 0
        while page := await self._caller.command("LRANGE", self._keys.waiting(), at, at + PAGE - 1):
            there.update(page)
            at += len(page)
        gone, cursor = 0, b""
        while cursor != b"0":
            cursor, ids = await self._caller.command(
                "SSCAN", self._keys.listed(), cursor or b"0", "COUNT", PAGE
            )
            gone += await self._forget([one for one in ids if one not in there])
        return gone

    async def _sweep_facts(self) -> int:
        """Checks some facts each time and drops those of jobs that have ended or are gone."""
        self._cursor, flat = await self._caller.command(
            "HSCAN", self._keys.facts(), self._cursor, "COUNT", FACTS
        )
        ids = flat[::2]
        if not ids:
            return 0
        names = texts(ids)
        commands: list[tuple[str, ...]] = [("MGET", *(self._keys.status(name) for name in names))]
        commands += [("EXISTS", self._keys.data(name)) for name in names]
        status, *there = await self._caller.pipeline(commands)
        return await self._forget(
            [one for one, state, known in zip(ids, status, there, strict=True) if state in _OVER or not known]
        )

    async def _forget(self, ids: list[bytes]) -> int:
        gone = 0
        for start in range(0, len(ids), FORGET):
            gone += await self._caller.again(
                load("forget"), self._keys.waiting(), *ids[start : start + FORGET], patient=True
            )
        return gone
