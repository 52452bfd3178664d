"""The periodic maintenance of a queue: recovers stalled jobs, promotes due jobs, settles pauses.

Every worker does it; a guard key lets one check run per interval and queue, and what is done twice does
no harm. A check that is still running when the next is due makes that one be skipped, with a warning and a
count, instead of piling up.

Every worker also gives signs of life. After a silence that is long enough for a lease to run out, the server
was away, or every worker was: the first check then only notes what is active (docs/decisions/61).

May touch: the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from oxcart.broker.bullmq.graphs import GateKeeper
from oxcart.broker.port import Outage, ServedBroker
from oxcart.model.errors import BrokerError

log = logging.getLogger("oxcart.recovery")

PROMOTE = 40
#: Seconds between checks at most where a lock of 30 s must be enough to have a job back within 35 s.
CHECK_OFTEN = 2.0
#: Seconds after the end of the last check's guard at which the next one is tried.
GUARD_MARGIN = 0.005
#: Of the outage in which a lease could run out, the part that is noticed as one at the latest.
NOTICED = 0.6
#: Seconds of silence that are no outage in any case: a busy machine is silent for as long.
LEAST_SILENCE = 0.3
#: Seconds that a worker may need to reach a server that is back, where its lease is longer than that.
REACH = 2.0
#: The same as a part of its renewal interval, where that is more.
REACH_PART = 0.2
#: Signs of life that a worker gives in the silence that would count as an outage.
SIGNS = 3


def outage_of(lock_ms: int, renew_every: float) -> Outage:
    """When a server counts as having been away, for leases of this length.

    Args:
        lock_ms: How long a lease lasts.
        renew_every: Seconds between renewals.
    """
    # A lease that is about to be renewed when the outage begins runs out first.
    shortest = lock_ms / 1000 - renew_every
    # The pauses between attempts to connect grow with the outage, so a short lease needs less.
    grace = renew_every + max(REACH_PART * renew_every, min(REACH, lock_ms / 1000))
    return Outage(round(max(LEAST_SILENCE, NOTICED * shortest) * 1000), round(grace * 1000))


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
        outage: When the server counts as having been away; None to give no signs of life.
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
        outage: Outage | None = None,
    ) -> None:
        self._broker = broker
        self._interval = interval
        self._max_stalled = max_stalled
        self._recovered = recovered
        self._skipped = skipped
        self._gates = gates
        self._tick = tick
        self._outage = outage
        self._sign_every = tick if outage is None else outage.silence_ms / 1000 / SIGNS
        self._next_sign = 0.0
        self._checking: asyncio.Task[None] | None = None
        self._next_check = 0.0
        self._at_end = False
        self._sooner = asyncio.Event()

    async def run(self) -> None:
        """Checks and ticks until cancelled."""
        loop = asyncio.get_running_loop()
        self._next_check = loop.time()
        self._next_sign = loop.time() + self._sign_every
        next_tick = loop.time()
        try:
            while True:
                if loop.time() >= self._next_check:
                    self._next_check = loop.time() + self._interval
                    self._start_check()
                if loop.time() >= next_tick:
                    await self._promote()
                    next_tick = loop.time() + self._tick
                if loop.time() >= self._next_sign:
                    await self._appear()
                self._sooner.clear()
                until = min(self._next_check, self._next_sign, next_tick)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(until):
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
                max_stalled=self._max_stalled,
                interval_ms=max(1, round(self._interval * 1000)),
                outage=self._outage,
            )
            if found.ran and self._gates is not None and (mended := await self._gates.repair()):
                log.warning("queue %s: %d dependencies had lost their gates", self._broker.queue, mended)
        except BrokerError as error:
            log.warning("queue %s: stalled check failed: %s", self._broker.queue, error)
            return
        if found.ran:
            self._at_end = False
            if found.wait_ms:
                log.info(
                    "queue %s: the server or all workers were away; no job is recovered for %.1f s, "
                    "in which workers renew their leases",
                    self._broker.queue,
                    found.wait_ms / 1000,
                )
                self._next_check = asyncio.get_running_loop().time() + found.wait_ms / 1000 + GUARD_MARGIN
                self._sooner.set()
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

    async def _appear(self) -> None:
        """Gives a sign of life; where the last one has run out, a check must not wait for its turn."""
        self._next_sign = asyncio.get_running_loop().time() + self._sign_every
        if self._outage is None:
            return
        try:
            is_alive = await self._broker.appear(self._outage)
        except BrokerError as error:
            log.debug("queue %s: a sign of life is lost: %s", self._broker.queue, error)
            return
        # From its answer on: a call that hung is no sign given now.
        self._next_sign = asyncio.get_running_loop().time() + self._sign_every
        if not is_alive and (self._checking is None or self._checking.done()):
            self._next_check = asyncio.get_running_loop().time()

    async def _promote(self) -> None:
        """Lets due jobs through; where many are due at once, a bounded number at a time."""
        try:
            moved = PROMOTE
            while moved == PROMOTE:
                moved, _ = await self._broker.promote(PROMOTE)
            if 0 < self._broker.next_expiry <= self._broker.clock():
                await self._broker.expire()
        except BrokerError as error:
            log.debug("queue %s: tick failed: %s", self._broker.queue, error)
