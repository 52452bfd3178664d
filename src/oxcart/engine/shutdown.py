"""How a worker that stops commits the outcomes that it still has.

May touch: the server, through ``claims``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from oxcart.engine.claims import Claims, Station

log = logging.getLogger("oxcart.worker")

#: Seconds between looks at what is still to be committed.
LOOK = 0.05
#: Seconds that a worker waits for a server that cannot be reached.
UNREACHED = 0.5
#: Seconds that it waits for a server that is there and does not answer.
ANSWERED = 2.0


async def commit_the_rest(claims: Claims, stations: Sequence[Station], give_up: Callable[[], float]) -> bool:
    """Commits the outcomes that are left; waits for a server that is away only while there are any.

    Args:
        claims: What has outcomes to commit.
        stations: The queues of the worker.
        give_up: Until when outcomes may wait for a server, by the monotonic clock. A second stop makes it
            sooner.

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
        is_away = any(one.calls and not one.broker.caller.link.is_connected for one in stations)
        patience = UNREACHED if is_away else ANSWERED
        if not draining.done() and now > max(moved, give_up() if owed else 0.0) + patience:
            draining.cancel()
            await asyncio.wait((draining,))
            if owed:
                log.error(
                    "%d outcomes could not be committed; their jobs run again when their leases have run out",
                    owed,
                )
            return False
    return all(one.broker.caller.link.is_connected for one in stations)
