"""The housekeeping of a worker: takes back jobs of dead workers, lets due jobs through, settles pauses.

Every worker does it; a guard key lets one check run per interval and queue, and what is done twice does
no harm. A check that is still running when the next is due makes that one be skipped, with a warning and a
count, instead of piling up.

May touch: the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable

from oxcart.broker.bullmq.graphs import GateKeeper
from oxcart.broker.port import ServedBroker
from oxcart.model.errors import BrokerError

log = logging.getLogger("oxcart.recovery")

PROMOTE = 40
#: Seconds between checks at most where a lock of 30 s must be enough to have a job back within 35 s.
CHECK_OFTEN = 2.0
#: Seconds after the end of the last check's guard at which the next one is tried.
GUARD_MARGIN = 0.005


def check_interval(broker: ServedBroker, interval: float) -> float:
    """Seconds between checks: as asked for, or as often as the protocol needs it."""
    return interval if broker.capabilities.wakes else min(interval, CHECK_OFTEN)


class Recovery:
    """The stalled check and the tick of one queue.

    Args:
        broker: The queue.
        interval: Seconds between checks.
        max_stalled: How often a job may stall before it is failed.
        recovered: Told the ids that came back.
        skipped: Told of a check that was skipped.
        gates: Looks after jobs of the queue whose gates were lost.
        tick: Seconds between ticks.
        grace: Seconds without a check after the server was away for longer than that: all leases ran out
            then, and workers that are well take them up again.
    """

    def __init__(
        self,
        broker: ServedBroker,
        *,
        interval: float,
        max_stalled: int,
        recovered: Callable[[list[str]], None],
        skipped: Callable[[], None],
        gates: GateKeeper | None = None,
        tick: float = 1.0,
        grace: float = 0.0,
    ) -> None:
        self._broker = broker
        self._interval = interval
        self._max_stalled = max_stalled
        self._recovered = recovered
        self._skipped = skipped
        self._gates = gates
        self._tick = tick
        self._grace = grace
        self._checking: asyncio.Task[None] | None = None
        self._next_check = 0.0
        self._at_end = False
        self._sooner = asyncio.Event()

    async def run(self) -> None:
        """Checks and ticks until cancelled."""
        loop = asyncio.get_running_loop()
        self._next_check = loop.time()
        was_there = math.inf
        try:
            while True:
                if loop.time() >= self._next_check:
                    self._next_check = loop.time() + self._interval
                    self._start_check()
                if await self._promote():
                    if loop.time() - was_there > max(self._grace, 3 * self._tick):
                        self._next_check = loop.time() + self._grace
                    was_there = loop.time()
                self._sooner.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(self._tick, max(0.0, self._next_check - loop.time()))):
                        await self._sooner.wait()
        finally:
            if self._checking is not None:
                self._checking.cancel()

    def _start_check(self) -> None:
        if self._checking is not None and not self._checking.done():
            log.warning("queue %s: stalled check skipped, the last one is still running", self._broker.queue)
            self._skipped()
            return
        self._checking = asyncio.get_running_loop().create_task(self.check(), name="oxcart-recovery")

    async def check(self) -> None:
        """One stalled check."""
        try:
            found = await self._broker.recover(
                max_stalled=self._max_stalled, interval_ms=max(1, round(self._interval * 1000))
            )
            if found.ran and self._gates is not None and (mended := await self._gates.repair()):
                log.warning("queue %s: %d dependencies had lost their gates", self._broker.queue, mended)
        except BrokerError as error:
            log.warning("queue %s: stalled check failed: %s", self._broker.queue, error)
            return
        if found.ran:
            self._at_end = False
        else:
            # Another worker checked a while ago, and may be gone by now: take over when its time is up.
            wait = found.wait_ms / 1000
            if not wait and self._at_end:
                wait = self._tick  # its end was at hand the last time too: not to be asked all the time
            self._at_end = not found.wait_ms
            again = asyncio.get_running_loop().time() + wait + GUARD_MARGIN
            self._next_check = min(self._next_check, again)
            self._sooner.set()
        if found.ids:
            log.warning(
                "queue %s: %d jobs taken back from lost workers",
                self._broker.queue,
                len(found.ids),
                extra={"job_ids": found.ids[:100]},
            )
            self._recovered(found.ids)

    async def _promote(self) -> bool:
        """Lets due jobs through; where many are due at once, a bounded number at a time.

        Returns:
            Whether the server was there.
        """
        try:
            moved = PROMOTE
            while moved == PROMOTE:
                moved, _ = await self._broker.promote(PROMOTE)
            if 0 < self._broker.next_expiry <= self._broker.clock():
                await self._broker.expire()
        except BrokerError as error:
            log.debug("queue %s: tick failed: %s", self._broker.queue, error)
            return False
        return True
