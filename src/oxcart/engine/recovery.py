"""Recovers stalled jobs, promotes due jobs and gives signs of life; the same for queues and lanes.

Every worker does it. A guard key lets one stalled check run per interval and queue, and work that is done
twice does no harm.

After a silence of all workers in which a lease can expire, the server was away, or every worker was. The
first check then only notes the active jobs, so that workers renew first (docs/decisions/61).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from oxcart.broker.port import Outage, ServedBroker
from oxcart.engine.looper import Looper
from oxcart.engine.observer import Observer

log = logging.getLogger("oxcart.recovery")

#: Jobs that one call promotes.
PROMOTE = 40
#: Seconds before the next attempt if a guard is about to end twice in a row.
AT_END = 1.0
#: Most seconds between checks if a lock of 30 s must suffice to have a job back within 35 s.
CHECK_OFTEN = 2.0
#: Seconds after the end of the last check's guard at which the next one is tried.
GUARD_MARGIN = 0.005
#: The part of an outage in which a lease could expire after which it is noticed at the latest.
NOTICED = 0.6
#: Seconds of silence that never count as an outage: a busy machine is silent for as long.
LEAST_SILENCE = 0.3
#: Seconds that a worker may need to reach a server that is back, if its lease is longer than that.
REACH = 2.0
#: The same as a part of its renewal interval, if that is more.
REACH_PART = 0.2
#: Signs of life that a worker gives in the silence that would count as an outage.
SIGNS = 3


def outage_of(lock_ms: int, renew_every: float) -> Outage:
    """Returns when a server counts as having been away, for leases of this length.

    Args:
        lock_ms: How long a lease lasts.
        renew_every: Seconds between renewals.
    """
    # A lease that is about to be renewed when the outage begins expires first.
    shortest = lock_ms / 1000 - renew_every
    # The pauses between attempts to connect grow with the outage, so a short lease needs less.
    grace = renew_every + max(REACH_PART * renew_every, min(REACH, lock_ms / 1000))
    return Outage(round(max(LEAST_SILENCE, NOTICED * shortest) * 1000), round(grace * 1000))


def check_interval(broker: ServedBroker, interval: float) -> float:
    """Returns the seconds between checks: as configured, or as often as the protocol needs it."""
    return interval if broker.capabilities.can("wakes") else min(interval, CHECK_OFTEN)


class StalledCheck(Looper):
    """The check for stalled jobs of one queue or lane.

    Args:
        broker: The queue or lane.
        interval: Seconds between checks.
        max_stalled: How often a job may stall before it fails.
        recovered: Receives the ids of recovered jobs.
        skipped: Called for each interval in which the last check is still running.
        outage: When the server counts as having been away; None to check in any case.
    """

    name = "stalled check"

    def __init__(
        self,
        broker: ServedBroker,
        *,
        interval: float,
        max_stalled: int,
        recovered: Callable[[list[str]], None],
        skipped: Callable[[], None] = lambda: None,
        outage: Outage | None = None,
    ) -> None:
        super().__init__(broker.queue)
        self.interval = interval
        self._broker = broker
        self._max_stalled = max_stalled
        self._recovered = recovered
        self._skipped = skipped
        self._outage = outage
        self._overdue: asyncio.TimerHandle | None = None
        self._at_end = False

    @property
    def is_running(self) -> bool:
        """Whether a check is in progress."""
        return self._overdue is not None

    async def tick(self) -> float | None:
        """Checks once; returns the seconds until the next check, or None for the interval."""
        self._watch()
        try:
            found = await self._broker.recover(
                max_stalled=self._max_stalled,
                interval_ms=max(1, round(self.interval * 1000)),
                outage=self._outage,
            )
            if found.ran and self._broker.gates is not None and (mended := await self._broker.gates.repair()):
                log.warning("queue %s: restored %d lost gates of dependents", self.queue, mended)
        finally:
            if self._overdue is not None:
                self._overdue.cancel()
                self._overdue = None
        if found.ids:
            log.warning(
                "queue %s: recovered %d stalled jobs",
                self.queue,
                len(found.ids),
                extra={"job_ids": found.ids[:100]},
            )
            self._recovered(found.ids)
        wait = found.wait_ms / 1000
        if found.ran:
            self._at_end = False
            if not wait:
                return None
            log.info(
                "queue %s: the server or all workers were away; no job is recovered for %.1f s, "
                "in which workers renew their leases",
                self.queue,
                wait,
            )
            return wait + GUARD_MARGIN
        # Another worker checked, and may be gone: take over when its guard ends.
        if not wait and self._at_end:
            wait = AT_END  # it was about to end the last time too: do not ask all the time
        self._at_end = not found.wait_ms
        return min(self.interval, wait + GUARD_MARGIN)

    def _watch(self) -> None:
        self._overdue = asyncio.get_running_loop().call_later(self.interval, self._skip)

    def _skip(self) -> None:
        log.warning("queue %s: stalled check skipped, the last one is still running", self.queue)
        self._skipped()
        self._watch()


def observed_check(
    broker: ServedBroker, interval: float, max_stalled: int, outage: Outage, observer: Observer | None
) -> StalledCheck:
    """Returns the stalled check of a queue; an observer receives what it finds."""
    return StalledCheck(
        broker,
        interval=check_interval(broker, interval),
        max_stalled=max_stalled,
        recovered=lambda ids: observer.stalled(broker.base, ids) if observer else None,
        skipped=lambda: observer.check_skipped(broker.base) if observer else None,
        outage=outage,
    )


class Promotion(Looper):
    """Promotes due jobs of a queue, and ends expired jobs."""

    name = "promotion"

    def __init__(self, broker: ServedBroker, *, interval: float = 1.0) -> None:
        super().__init__(broker.queue)
        self.interval = interval
        self._broker = broker

    async def tick(self) -> None:
        """Promotes in steps, so that many due jobs leave the server free in between."""
        moved = PROMOTE
        while moved == PROMOTE:
            moved, _ = await self._broker.promote(PROMOTE)
        if 0 < self._broker.next_expiry <= self._broker.clock():
            await self._broker.expire()


class SignsOfLife(Looper):
    """Gives signs of life; makes the check due at once if the last sign has expired.

    Args:
        broker: The queue.
        outage: When the server counts as having been away.
        check: The stalled check of the queue.
    """

    name = "sign of life"

    def __init__(self, broker: ServedBroker, outage: Outage, check: StalledCheck) -> None:
        super().__init__(broker.queue)
        self.interval = self.delay = outage.silence_ms / 1000 / SIGNS
        self._broker = broker
        self._outage = outage
        self._check = check

    async def tick(self) -> None:
        """Gives a sign, and makes the check due if the previous sign had expired."""
        if not await self._broker.appear(self._outage) and not self._check.is_running:
            self._check.soon()
