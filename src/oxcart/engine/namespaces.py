"""What a worker does for the Bridge namespaces that it serves: it is registered, and it fires schedules.

Every worker is a scheduler as well, and one of them leads; the others wait for it to be gone.

May touch: the server, through brokers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oxcart.broker.bridge.broker import BridgeBroker
from oxcart.broker.bridge.cron import CronKeeper
from oxcart.broker.bridge.presence import BEAT_EVERY, Presence, sweep
from oxcart.broker.port import ServedBroker
from oxcart.model.errors import BrokerError
from oxcart.model.target import Abilities

log = logging.getLogger("oxcart.worker")

#: Seconds between looks for schedules that are due.
TICK = 1.0


class Namespaces:
    """The namespaces of one worker.

    Args:
        brokers: The worker's queues; those of other protocols are left out.
        name: The worker's id.
        abilities: What it can do at this moment.
        every: Seconds between heartbeats.
    """

    def __init__(
        self,
        brokers: Sequence[ServedBroker],
        name: str,
        *,
        abilities: Callable[[], Abilities],
        every: float = BEAT_EVERY,
    ) -> None:
        self._abilities = abilities
        self._every = every
        self._brokers = [broker for broker in brokers if isinstance(broker, BridgeBroker)]
        groups: dict[tuple[int, str], list[BridgeBroker]] = {}
        for broker in self._brokers:
            groups.setdefault((id(broker.server), broker.keys.base), []).append(broker)
        self._entries = [
            (group[0], Presence(group[0], name, tuple(broker.queue for broker in group)))
            for group in groups.values()
        ]
        self._keepers = [CronKeeper(group[0], name) for group in groups.values()]
        self._changed = asyncio.Event()

    @property
    def are_any(self) -> bool:
        """Whether there is a namespace at all."""
        return bool(self._entries)

    async def begin(self, stopping: asyncio.Event) -> None:
        """Enters the worker before it takes a job; a server that is away hears of it later.

        Args:
            stopping: Ends the wait for a server that is away.
        """
        self._serve()
        beating = asyncio.ensure_future(self._beat())
        stopped = asyncio.ensure_future(stopping.wait())
        try:
            await asyncio.wait((beating, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            beating.cancel()
            stopped.cancel()
            await asyncio.wait((beating, stopped))
        if not beating.cancelled():
            beating.result()

    def hurry(self) -> None:
        """Says at once what the worker can do: it has changed."""
        self._serve()
        self._changed.set()

    async def run(self) -> None:
        """Beats and fires until cancelled."""
        await asyncio.gather(self._live(), *(self._keep(keeper) for keeper in self._keepers))

    async def end(self) -> None:
        """Takes the worker out of the registries, and lets another lead."""
        leaving = [entry.leave() for _, entry in self._entries]
        leaving += [keeper.resign() for keeper in self._keepers if keeper.term]
        for one in leaving:
            with contextlib.suppress(BrokerError, TimeoutError):
                async with asyncio.timeout(2):
                    await one

    async def _live(self) -> None:
        while True:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._changed.wait()
            await self._beat()

    async def _keep(self, keeper: CronKeeper) -> None:
        while True:
            try:
                await keeper.tick()
            except BrokerError as error:
                log.warning("schedules were not looked after: %s", error)
            await asyncio.sleep(TICK)

    def _serve(self) -> None:
        for broker in self._brokers:
            broker.serve(self._abilities())

    async def _beat(self) -> None:
        for broker, entry in self._entries:
            try:
                async with asyncio.timeout(self._every):
                    await entry.beat(self._abilities())
                    await sweep(broker)
            except (BrokerError, TimeoutError) as error:
                log.warning("the worker's heartbeat did not arrive: %s", error)


def read_abilities(given: Abilities | Mapping[str, Any] | None, name: str) -> Abilities:
    """Abilities as a user writes them, under the worker's name unless they say another.

    Raises:
        ValidationError: They are none.
    """
    read = Abilities() if given is None else Abilities.read(given)
    return read if read.server is not None else read.named(name)
