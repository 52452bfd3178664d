"""Waits for work without asking for it: one blocking call per server over the markers of idle queues.

A marker is popped by the worker that is woken. Whoever pops one is answerable for it: a worker that finds
itself without a free slot puts it back, so that another is woken instead of nobody.

Beside the queues' markers a wait may be for keys that somebody else understands: those of lanes, and the
worker's own wake key.

The connection's name is what Node's ``getWorkers`` looks for; queues beyond the first get a connection
that does nothing but carry their name.

May touch: the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oxcart.broker.connection import Reconnect, Server
from oxcart.broker.link import ReplyError
from oxcart.broker.port import ServedBroker
from oxcart.model.errors import AccessDenied, BrokerError, BrokerUnavailable

log = logging.getLogger("oxcart.worker")

#: Longest single block, in seconds: also the pace at which a queue without markers is looked at.
POLL = 5.0
#: The same where peers wake nobody.
POLL_OFTEN = 0.25


def by_slot(brokers: Sequence[ServedBroker]) -> list[list[int]]:
    """The indexes of queues that one blocking call can span: on a cluster those of one slot."""
    groups: dict[tuple[int, int | None], list[int]] = {}
    for index, broker in enumerate(brokers):
        groups.setdefault((id(broker.server), broker.slot), []).append(index)
    return list(groups.values())


#: Seconds to wait at most for a claim under way to say which queues are idle.
SETTLE = 1.0

#: Takes the member that was popped from a key; False where it must be put back.
Taker = Callable[[bytes], bool]


def _nothing() -> Mapping[bytes, Taker]:
    return {}


class Waiter:
    """The blocking wait of one worker on one server.

    Args:
        server: Where to block.
        brokers: The queues to wait for; all in one slot on a cluster.
        name: The worker's name.
        wanted: Which queues (by index) may be waited for now, and until which time (ms) at most, or None.
        wake: Told the index of a queue that has work, or None when it is time to look at all.
        has_room: Whether a job could be taken now.
        reconnect: Pauses between attempts to reach a lost server.
        on_state: Told whether the server can be reached.
        beside: Further keys to wait for now, and who takes what is popped from them.
        is_settled: Whether it is known of all queues if they are idle; while a claim of one is under way its
            marker is not among those that are waited for, so no long wait may begin.
    """

    def __init__(
        self,
        server: Server,
        brokers: Sequence[ServedBroker],
        name: str,
        *,
        wanted: Callable[[], tuple[list[int], int | None]],
        wake: Callable[[int | None], None],
        has_room: Callable[[], bool],
        clock: Callable[[], int],
        reconnect: Reconnect,
        on_state: Callable[[bool], None],
        beside: Callable[[], Mapping[bytes, Taker]] = _nothing,
        is_settled: Callable[[], bool] = lambda: True,
    ) -> None:
        self._server = server
        self._brokers = brokers
        self._beside = beside
        self._is_settled = is_settled
        self._wanted = wanted
        self._wake = wake
        self._has_room = has_room
        self._clock = clock
        self._reconnect = reconnect
        self._on_state = on_state
        slot = brokers[0].slot
        suffix = f":w:{name}"
        self._link = server.link(slot, client_name=brokers[0].keys.client_name(suffix))
        self._signs = [
            server.link(broker.slot, client_name=broker.keys.client_name(suffix)) for broker in brokers[1:]
        ]
        self._index = {broker.keys.marker().encode(): i for i, broker in enumerate(brokers)}
        self._poll = POLL if all(broker.capabilities.wakes for broker in brokers) else POLL_OFTEN
        self.needed = asyncio.Event()

    async def run(self) -> None:
        """Waits, wakes, and waits again, until cancelled.

        Raises:
            AccessDenied: The server refused the first connection.
            BrokerUnavailable: The server stayed away for as many attempts as ``reconnect`` allows.
        """
        attempt, known, let_in = 0, False, False
        try:
            while True:
                try:
                    await self._greet()
                    if not known:
                        known = let_in = True
                        self._on_state(True)
                        self._wake(None)
                    await self._round()
                    attempt = 0
                except (BrokerError, ReplyError) as error:
                    attempt, known = attempt + 1, False
                    self._on_state(False)
                    if isinstance(error, AccessDenied) and not let_in:
                        raise  # later denials pass: a password may change on the server first
                    # Most often the slot moved, or the server is no master any more: look for it anew.
                    self._server.forget_slots()
                    if isinstance(error, ReplyError):
                        self._link.drop("the server refused")
                    if self._reconnect.attempts is not None and attempt >= self._reconnect.attempts:
                        raise BrokerUnavailable(f"gave up after {attempt} attempts: {error}") from error
                    pause = self._reconnect.pause(attempt, holding=not self.needed.is_set())
                    if attempt in (1, 5) or attempt % 20 == 0:
                        log.warning("waiting for work: %s; trying again in %.1f s", error, pause)
                    await asyncio.sleep(pause)
        finally:
            for link in [self._link, *self._signs]:
                await link.close()

    async def _greet(self) -> None:
        await self._link.connect()
        for sign in self._signs:
            await sign.connect()

    async def _round(self) -> None:
        await self._settled()
        indexes, until = self._wanted()
        beside = self._beside()
        if not indexes and not beside:
            self.needed.clear()
            # The connection stays, so that the worker is seen while it is busy.
            try:
                # Not wait_for: before Python 3.12 it loses a cancellation that comes together with the event.
                async with asyncio.timeout(POLL):
                    await self.needed.wait()
            except TimeoutError:
                await self._link.call("PING")
                for sign in self._signs:
                    await sign.call("PING")
            return
        seconds = self._poll if self._is_settled() else min(SETTLE, self._poll)
        if until is not None:
            seconds = min(seconds, max(0.001, (until - self._clock()) / 1000))
        keys: list[str | bytes] = [self._brokers[index].keys.marker() for index in indexes]
        keys += beside
        popped = await self._link.call("BZPOPMIN", *keys, f"{seconds:.3f}", timeout=seconds + 5.0)
        if popped is None:
            self._wake(None)
            return
        if (take := beside.get(popped[0])) is None:
            await self._woken(popped)
        elif not take(popped[1]):
            await self._brokers[0].caller.command("ZADD", popped[0], "LT", popped[2], popped[1])

    async def _settled(self) -> None:
        """Waits until all claims under way have said which queues are idle, or hang."""
        if self._is_settled():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(SETTLE, self._poll)):
                while not self._is_settled():
                    self.needed.clear()
                    await self.needed.wait()

    async def _woken(self, popped: list[Any]) -> None:
        index = self._index[popped[0]]
        if not self._has_room():
            await self._brokers[index].caller.command("ZADD", popped[0], "LT", popped[2], popped[1])
            return
        self._wake(index)
