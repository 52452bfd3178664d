"""Commits the outcomes that a worker still has when it stops."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from oxcart.engine.claims import Claims
from oxcart.engine.station import Station

log = logging.getLogger("oxcart.worker")

#: Seconds between checks of the remaining outcomes.
LOOK = 0.05
#: Seconds that a worker waits for a server that cannot be reached.
UNREACHED = 0.5
#: Seconds that it waits for a server that is connected and does not reply.
ANSWERED = 2.0


async def commit_the_rest(claims: Claims, stations: Sequence[Station], give_up: Callable[[], float]) -> bool:
    """Commits the remaining outcomes; waits for a lost server only while there are any.

    Args:
        claims: Has the outcomes.
        stations: The queues of the worker.
        give_up: Returns the time (monotonic clock) until which outcomes may wait for a server. A second stop
            makes it earlier.

    Returns:
        Whether every server can be reached.
    """
    draining = asyncio.ensure_future(claims.drained())
    owed, moved = claims.owed, time.monotonic()
    while not draining.done():
        await asyncio.wait((draining,), timeout=LOOK)
        now = time.monotonic()
        if (rest := claims.owed) < owed:
            owed, moved = rest, now
        is_away = any(one.calls and not one.broker.is_connected for one in stations)
        patience = UNREACHED if is_away else ANSWERED
        if not draining.done() and now > max(moved, give_up() if owed else 0.0) + patience:
            draining.cancel()
            await asyncio.wait((draining,))
            if owed:
                log.error(
                    "%d outcomes could not be committed; their jobs run again when their leases have expired",
                    owed,
                )
            return False
    return all(one.broker.is_connected for one in stations)
