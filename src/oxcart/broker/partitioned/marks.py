"""Marks: what one client at a time may do with the partitions of a queue."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator

from oxcart.broker.bullmq.scripts import load
from oxcart.broker.ids import new_id
from oxcart.broker.partitioned.spread import PATIENCE, Spread
from oxcart.model.errors import BrokerTimeout, OxcartError

#: Ms after which a mark ends, unless its client renews it.
LASTS_MS = 5000
#: Seconds between attempts to set it.
AGAIN = 0.05


class Mark:
    """A mark in partition 0, which its client has set.

    Args:
        spread: The partitions.
        name: The name of its key, behind the queue's prefix.
    """

    def __init__(self, spread: Spread, name: str) -> None:
        self._broker = spread.broker(0)
        self._name = name
        self._token = new_id()

    async def set(self) -> bool:
        """Sets the mark unless another client has it; returns whether it did."""
        key = self._broker.keys.key(self._name)
        args = (key, self._token, "NX", "PX", LASTS_MS)
        return await self._broker.caller.write("SET", *args, timeout=PATIENCE) is not None

    async def keep(self, ms: int = LASTS_MS) -> bool:
        """Renews the mark, or removes it for 0 ms; returns whether this client still had it."""
        args = (self._name, self._token, ms)
        broker = self._broker
        answer = await broker.caller.again(load("keep_mark"), broker.keys.meta(), *args, timeout=PATIENCE)
        return bool(answer)

    async def check(self) -> None:
        """Renews the mark.

        Raises:
            BrokerTimeout: This client was away for so long that another one may have set it.
        """
        if not await self.keep():
            raise BrokerTimeout(f"queue {self._broker.queue}: this client was away for too long")

    async def renew(self) -> None:
        """Renews the mark until it is cancelled."""
        while True:
            await asyncio.sleep(LASTS_MS / 3000)
            with contextlib.suppress(OxcartError):
                await self.keep()


@contextlib.asynccontextmanager
async def alone(spread: Spread, name: str, *, waits: bool = True) -> AsyncIterator[Mark | None]:
    """Keeps other clients from the same; yields None at once if another one has the mark, unless it waits.

    A client that was killed keeps others out for five seconds at most.

    Raises:
        BrokerTimeout: Another client kept this one out for fifteen seconds.
    """
    mark, end = Mark(spread, name), time.monotonic() + 3 * LASTS_MS / 1000
    while not (is_set := await mark.set()) and waits:
        if time.monotonic() > end:
            raise BrokerTimeout(f"queue {spread.queue}: another client has {name} for too long")
        await asyncio.sleep(AGAIN * (0.5 + random.random()))
    if not is_set:
        yield None
        return
    renewing = asyncio.create_task(mark.renew(), name="oxcart-mark")
    try:
        yield mark
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        with contextlib.suppress(OxcartError):  # the mark ends by itself
            await mark.keep(0)
