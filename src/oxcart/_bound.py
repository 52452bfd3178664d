"""What of a queue belongs to one event loop: a connection, waiting adds, waiting results.

May touch: the server, through the broker it is given.
"""

from __future__ import annotations

import asyncio
import os

from oxcart.broker.bullmq.codec import Encoded
from oxcart.broker.port import Added, ServedBroker
from oxcart.events import Results
from oxcart.model.errors import OxcartError


class Bound:
    """What of a queue belongs to one event loop: a connection, waiting adds, waiting results."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        broker: ServedBroker,
        add_timeout: float,
        *,
        shares: bool = False,
    ) -> None:
        self.loop = loop
        self.pid = os.getpid()
        self.broker = broker
        self.results = Results(broker)
        self._add_timeout = add_timeout
        self._alone = False
        self._shares = shares  # the connection is another queue's
        self._waiting: list[tuple[Encoded, asyncio.Future[Added]]] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def add(self, job: Encoded) -> Added:
        """Adds a job: at once where no other add is under way, else together with those of this turn."""
        if self._alone or self._waiting:
            return await self._add_soon(job)
        self._alone = True
        try:
            (added,) = await self.broker.add_each([job], timeout=self._add_timeout)
        finally:
            self._alone = False
        if isinstance(added, OxcartError):
            raise added
        return added

    def _add_soon(self, job: Encoded) -> asyncio.Future[Added]:
        future: asyncio.Future[Added] = self.loop.create_future()
        if not self._waiting:
            self.loop.call_soon(self._send)
        self._waiting.append((job, future))
        return future

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        task = self.loop.create_task(self._add(waiting), name="oxcart-add")
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _add(self, waiting: list[tuple[Encoded, asyncio.Future[Added]]]) -> None:
        try:
            added = await self.broker.add_each([job for job, _ in waiting], timeout=self._add_timeout)
        except Exception as error:
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), one in zip(waiting, added, strict=True):
            if future.done():
                continue
            if isinstance(one, OxcartError):
                future.set_exception(one)
            else:
                future.set_result(one)

    async def close(self) -> None:
        """Waits for adds under way, and closes the connection."""
        if self._sending:
            await asyncio.wait(self._sending)
        await self.results.close()
        if not self._shares:
            await self.broker.close()
