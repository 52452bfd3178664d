"""Open streams: each ends when its caller's key or session ends, or its grants change.

A request is checked once, before its route runs. A stream has no end of its own, so its caller is checked
again while it is open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from weakref import WeakKeyDictionary

from oxcart.http.credentials import Caller, Connection, caller_of
from oxcart.http.mailbox import Mailbox

log = logging.getLogger("oxcart.http")

#: Seconds between two checks of the callers of open streams.
EVERY = 1.0

Check = Callable[[Connection, Caller], Awaitable[bool]]


class OpenStreams:
    """Checks the callers of open streams again and again.

    Args:
        check: Returns whether the sender of a request is still the same caller with the same grants.
    """

    def __init__(self, check: Check) -> None:
        self._check = check
        self._open: WeakKeyDictionary[Mailbox, tuple[Caller, Connection]] = WeakKeyDictionary()
        self._task: asyncio.Task[None] | None = None

    def add(self, connection: Connection, mailbox: Mailbox) -> None:
        """Ends a mailbox as soon as its caller may not listen any more.

        Args:
            connection: The request that opened the stream.
            mailbox: What its caller receives.
        """
        caller = caller_of(connection)
        if caller is None or caller.kind == "trusted":
            return
        self._open[mailbox] = caller, connection
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="oxcart-http-open-streams")

    async def close(self) -> None:
        """Stops checking."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while self._open:
            await asyncio.sleep(EVERY)
            try:
                await self._look()
            except Exception:
                log.exception("could not check the callers of open streams, trying again")

    async def _look(self) -> None:
        # Streams of one key or session need one check. Sessions of one key differ by their token.
        known: dict[Caller, bool] = {}
        for mailbox, (caller, connection) in list(self._open.items()):
            if caller not in known:
                known[caller] = await self._check(connection, caller)
            if not known[caller]:
                mailbox.end()
                self._open.pop(mailbox, None)
