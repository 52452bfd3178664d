"""Waits for jobs without polling: one blocking call per server over the markers of idle queues.

The worker that is woken pops the marker and is responsible for it. A worker without a free slot puts the
marker back, so that another worker is woken instead of none.

A wait may also include keys of other parts of the worker: the markers of lanes and the worker's wake key.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence

from oxcart.broker.connection import Reconnect
from oxcart.broker.port import ServedBroker
from oxcart.model.errors import AccessDenied, BrokerError, BrokerUnavailable

log = logging.getLogger("oxcart.worker")

#: Longest single block, in seconds; also the interval at which queues are checked without a marker.
POLL = 5.0
#: The same for a protocol whose peers write no markers.
POLL_OFTEN = 0.25


#: Queues that one blocking call spans at most: after every job that wakes a worker it names all again.
SPAN = 500
#: Queues up to which a wait without a marker lets the worker check all of them, and waits in which it checks
#: all of more. The worker on duty restores lost markers.
CHECKED, CHECKS = 32, 120


def by_slot(brokers: Sequence[ServedBroker]) -> list[list[int]]:
    """Groups the indexes of queues that one blocking call can span: on a cluster those of one slot."""
    groups: dict[Hashable, list[int]] = {}
    for index, broker in enumerate(brokers):
        groups.setdefault(broker.site, []).append(index)
    return list(groups.values())


#: Seconds to wait at most for a pending claim to show which queues are idle.
SETTLE = 1.0

#: Receives the member that was popped from a key; returns False if it must be put back.
Taker = Callable[[bytes], bool]


def _nothing() -> Mapping[bytes, Taker]:
    return {}


class Waiter:
    """The blocking wait of one worker on one server.

    Args:
        brokers: The queues to wait for; all in one slot on a cluster.
        name: The worker's name.
        wanted: Returns the indexes of the queues to wait for now, and the time (ms) until which at most.
        wake: Receives the index of a queue that has jobs, or None to check all queues.
        checked: Called when it is time to check queues without a marker.
        has_room: Returns whether a slot is free.
        clock: The clock of the times that ``wanted`` returns, in ms.
        reconnect: Pauses between attempts to reach a lost server.
        on_state: Receives whether the server can be reached.
        beside: Returns further keys to wait for, each with the function that takes what is popped from it.
        is_settled: Returns whether every queue is known to be idle or not. The wait leaves out a queue with a
            pending claim, so no long wait may begin before its reply.
    """

    def __init__(
        self,
        brokers: Sequence[ServedBroker],
        name: str,
        *,
        wanted: Callable[[], tuple[list[int], int | None]],
        wake: Callable[[int | None], None],
        checked: Callable[[], None] | None = None,
        has_room: Callable[[], bool],
        clock: Callable[[], int],
        reconnect: Reconnect,
        on_state: Callable[[bool], None],
        beside: Callable[[], Mapping[bytes, Taker]] = _nothing,
        is_settled: Callable[[], bool] = lambda: True,
    ) -> None:
        self._beside = beside
        self._is_settled = is_settled
        self._wanted = wanted
        self._wake = wake
        self._checked = checked or (lambda: wake(None))
        self._has_room = has_room
        self._clock = clock
        self._reconnect = reconnect
        self._on_state = on_state
        self._markers = brokers[0].open_wait(brokers, name)
        self._poll = POLL if all(broker.capabilities.can("wakes") for broker in brokers) else POLL_OFTEN
        #: Seconds in which replies of claims are gathered before it looks at many queues again.
        self._gather = 0.05 if len(brokers) > CHECKED else 0
        self.needed = asyncio.Event()

    async def run(self) -> None:
        """Waits and wakes until cancelled.

        Raises:
            AccessDenied: The server refused the first connection.
            BrokerUnavailable: The server stayed away for as many attempts as ``reconnect`` allows.
        """
        attempt, known, let_in = 0, False, False
        try:
            while True:
                try:
                    await self._markers.connect()
                    if not known:
                        known = let_in = True
                        self._on_state(True)
                        self._wake(None)
                    await self._round()
                    attempt = 0
                except BrokerError as error:
                    attempt, known = attempt + 1, False
                    self._on_state(False)
                    if isinstance(error, AccessDenied) and not let_in:
                        raise  # later denials may pass: a password may change on the server first
                    if self._reconnect.attempts is not None and attempt >= self._reconnect.attempts:
                        raise BrokerUnavailable(f"gave up after {attempt} attempts: {error}") from error
                    pause = self._reconnect.pause(attempt, holding=not self.needed.is_set())
                    if attempt in (1, 5) or attempt % 20 == 0:
                        log.warning("could not wait for jobs, retrying in %.1f s: %s", pause, error)
                    await asyncio.sleep(pause)
        finally:
            await self._markers.close()

    async def _round(self) -> None:
        await self._settled()
        indexes, until = self._wanted()
        beside = self._beside()
        if not indexes and not beside:
            self.needed.clear()
            # The connection stays open, so that peers see the worker while it is busy.
            try:
                # Not wait_for: before Python 3.12 it loses a cancellation that comes together with the event.
                async with asyncio.timeout(POLL):
                    await self.needed.wait()
            except TimeoutError:
                await self._markers.ping()
            return
        seconds = self._poll if self._is_settled() else min(SETTLE, self._poll)
        if until is not None:
            seconds = min(seconds, max(0.001, (until - self._clock()) / 1000))
        popped = await self._markers.wait(indexes, beside, seconds)
        if popped is None:
            self._checked()
        elif (take := beside.get(popped.key)) is not None:
            if not take(popped.member):
                await self._markers.put_back(popped)
        elif self._has_room():
            self._wake(self._markers.queue_of(popped))
        else:
            await self._markers.put_back(popped)

    async def _settled(self) -> None:
        """Waits until all pending claims have shown which queues are idle, or hang."""
        if self._is_settled():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(SETTLE, self._poll)):
                while not self._is_settled():
                    self.needed.clear()
                    await self.needed.wait()
                    await asyncio.sleep(self._gather)
