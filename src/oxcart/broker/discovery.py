"""Finds the queues of a server, and keys by patterns, in steps that leave the server free between."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from oxcart.broker.progress import OnProgress, Progress
from oxcart.broker.replies import texts
from oxcart.model.names import HIDDEN
from oxcart.model.target import base_of

if TYPE_CHECKING:
    from oxcart.broker.connection import Reconnect, Server
    from oxcart.broker.port import ServedBroker

#: Keys that one step of a scan looks at.
STEP = 1000
#: Keys that one step of a scan for values looks at; fewer, as each is read.
SCAN = 500

_SPECIAL = re.compile(r"([*?\[\]\\^])")


def glob_escape(text: str) -> str:
    """Returns text as a pattern that matches only itself."""
    return _SPECIAL.sub(r"\\\1", text)


async def find_queues(
    server: Server, prefix: str, reconnect: Reconnect | None = None, *, lanes: bool = False
) -> list[str]:
    """Returns the names of all queues under a prefix, sorted; with ``lanes`` also those of their lanes."""
    names: list[str] = []
    async for _, found in scan_queues(server, prefix, reconnect, lanes=lanes):
        names += found
    return sorted(names)


async def scan_queues(
    server: Server, prefix: str, reconnect: Reconnect | None = None, *, lanes: bool = False
) -> AsyncIterator[tuple[int | None, list[str]]]:
    """Yields the queues under a prefix as the scan meets them, each once.

    Yields:
        A slot of the node that has them, None on a single server, and their names.
    """
    from oxcart.broker.caller import Caller

    seen: set[str] = set()
    pattern = f"{glob_escape(prefix)}:*:meta"
    for slot in await server.master_slots():
        caller = Caller(server, slot, "cli", reconnect=reconnect)
        try:
            cursor = b"0"
            while True:
                cursor, keys = await caller.command(
                    "SCAN", cursor, "MATCH", pattern, "COUNT", STEP, "TYPE", "hash"
                )
                found = {
                    name
                    for key in keys
                    if (name := queue_of(key.decode("utf-8", "replace"), prefix, server.is_cluster, lanes))
                }
                if new := found - seen:
                    seen |= new
                    yield slot, list(new)
                if cursor == b"0":
                    break
        finally:
            await caller.close()


def queue_of(meta_key: str, prefix: str, cluster: bool, lanes: bool = False) -> str | None:
    """Returns the queue of a meta key; None for a hidden one, or a job whose id ends in ``:meta``.

    Args:
        meta_key: The key.
        prefix: The prefix of the queue's name.
        cluster: Whether keys have tags of our making.
        lanes: Whether a lane is a queue of its own, or its key one of the queue that has it.
    """
    name = meta_key[len(prefix) + 1 : -len(":meta")]
    if not name or ":" in name or name.endswith(HIDDEN):
        return None
    base = base_of(name)
    rest = name[len(base) :] if lanes else ""
    if cluster and base.startswith("{") and base.endswith("}") and "{" not in prefix:
        base = base[1:-1]  # the tag that every client of ours puts there by itself
    return base + rest if base else None


async def scan_keys(
    broker: ServedBroker, pattern: str, kind: str, step: int, progress: OnProgress
) -> AsyncIterator[list[str]]:
    """Yields the keys of a pattern and a type, at most ``step`` at a time."""
    cursor, seen = b"0", 0
    total = int(await broker.caller.command("DBSIZE"))
    while True:
        cursor, keys = await broker.caller.command(
            "SCAN", cursor, "MATCH", pattern, "COUNT", SCAN, "TYPE", kind
        )
        seen += SCAN
        for at in range(0, len(keys), step):
            yield texts(keys[at : at + step])
        progress(Progress("keys", min(seen, total), total))
        if cursor == b"0":
            return
