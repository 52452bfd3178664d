"""Counts the jobs of a server's queues in each state, some queues at a time.

One pipeline counts many queues, and a page is dropped once it was yielded. So a server with 100 000 queues
needs no more memory than one with a hundred.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from fnmatch import fnmatchcase

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.keys import LISTS, Keys
from oxcart.broker.caller import Caller
from oxcart.broker.connection import Reconnect, Server
from oxcart.broker.discovery import scan_queues
from oxcart.broker.port.codes import STATES
from oxcart.broker.port.results import QueueRow
from oxcart.model.errors import BrokerError

#: Queues that one pipeline counts.
CHUNK = 100
#: Queues of one page, sorted.
PAGE = 500
#: Seconds after which a page is yielded even if it is not full.
PATIENCE = 0.5

#: Commands that count one queue: a length per state, its lanes, its settings, and whether these exist.
COMMANDS = len(STATES) + 3


async def overview(
    server: Server, prefix: str, reconnect: Reconnect | None = None, *, match: str | None = None
) -> AsyncIterator[list[QueueRow]]:
    """Yields all queues under a prefix, page by page.

    The queues of a page are sorted by name; pages come in the order in which the server lists keys.

    Args:
        server: The server.
        prefix: The prefix of queue names in keys.
        reconnect: Pauses and limit of attempts to reach a lost server.
        match: Only queues whose names fit, ``*`` and ``?`` as in a shell.
    """
    counting = _Counting(server, prefix, reconnect)
    found: dict[str, int | None] = {}
    since = time.monotonic()
    try:
        async for slot, names in scan_queues(server, prefix, reconnect):
            found |= {name: slot for name in names if match is None or fnmatchcase(name, match)}
            if len(found) >= PAGE or (found and time.monotonic() - since > PATIENCE):
                yield await counting.page(found)
                found, since = {}, time.monotonic()
        if found:
            yield await counting.page(found)
    finally:
        await counting.close()


async def count_queues(
    server: Server, prefix: str, names: Sequence[str], reconnect: Reconnect | None = None
) -> list[QueueRow]:
    """Returns queues by their names, sorted, without those that do not exist."""
    counting = _Counting(server, prefix, reconnect)
    try:
        return await counting.page(
            {name: Keys(name, prefix, True).slot() if server.is_cluster else None for name in names}
        )
    finally:
        await counting.close()


class _Counting:
    """Counts queues over one connection per node."""

    def __init__(self, server: Server, prefix: str, reconnect: Reconnect | None) -> None:
        self._server = server
        self._prefix = prefix
        self._reconnect = reconnect
        self._callers: dict[int | None, Caller] = {}

    async def page(self, places: Mapping[str, int | None]) -> list[QueueRow]:
        """Counts queues, given with a slot of their nodes."""
        by_slot: dict[int | None, list[str]] = {}
        for name, slot in places.items():
            by_slot.setdefault(slot, []).append(name)
        rows: list[QueueRow] = []
        for slot, names in by_slot.items():
            caller = self._callers.get(slot)
            if caller is None:
                caller = self._callers[slot] = Caller(self._server, slot, "cli", reconnect=self._reconnect)
            for at in range(0, len(names), CHUNK):
                rows += await self._part(caller, names[at : at + CHUNK])
        return sorted(rows, key=lambda row: row.queue)

    async def _part(self, caller: Caller, names: Sequence[str]) -> list[QueueRow]:
        try:
            return await self._count(caller, names)
        except BrokerError:
            if not self._server.is_cluster:
                raise
        rows = []
        for name in names:  # a slot may have moved since the scan: each queue is located again
            broker = BullMQBroker(self._server, name, prefix=self._prefix, reconnect=self._reconnect)
            try:
                rows += await self._count(broker.caller, [name])
            finally:
                await broker.close()
        return rows

    async def _count(self, caller: Caller, names: Sequence[str]) -> list[QueueRow]:
        commands: list[tuple[str, ...]] = []
        for name in names:
            keys = Keys(name, self._prefix, self._server.is_cluster)
            commands += [("LLEN" if state in LISTS else "ZCARD", keys.key(state)) for state in STATES]
            commands += [("EXISTS", keys.lanes()), ("EXISTS", keys.meta())]
            commands.append(("HMGET", keys.meta(), "paused", "version"))
        answers = await caller.pipeline(commands)
        rows = []
        for at, name in enumerate(names):
            *lengths, has_lanes, known, (paused, version) = answers[at * COMMANDS : (at + 1) * COMMANDS]
            counts = dict(zip(STATES, lengths, strict=True))
            if has_lanes:
                broker = BullMQBroker(self._server, name, prefix=self._prefix, caller=caller)
                for lane in (await broker.lanes.counts()).values():
                    for state in STATES:
                        counts[state] += lane[state]
            if known or any(counts.values()):
                library = version.decode("utf-8", "replace") if version else None
                rows.append(QueueRow(name, counts, paused is not None, library))
        return rows

    async def close(self) -> None:
        """Closes the connections."""
        for caller in self._callers.values():
            await caller.close()
