"""Reads what a server reports about itself: INFO, its clock and its connections."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from oxcart.broker.caller import Caller

if TYPE_CHECKING:
    from oxcart.broker.connection import Reconnect, Server


class ServerProbe:
    """A short-lived connection to one node, as an async context manager.

    Args:
        server: The server.
        slot: A slot of the node, on a cluster.
        reconnect: Pauses and limit of attempts to reach it.
    """

    def __init__(self, server: Server, slot: int | None, reconnect: Reconnect) -> None:
        self._caller = Caller(server, slot, "doctor", reconnect=reconnect)

    async def __aenter__(self) -> ServerProbe:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._caller.close()

    async def info(self) -> dict[str, str]:
        """Returns the reply to INFO, as names and values."""
        lines = (await self._caller.command("INFO")).decode("utf-8", "replace").splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))

    async def skew(self, tries: int = 5) -> tuple[float, float]:
        """Returns how far this machine's clock is ahead of the server's, and the round trip; in seconds.

        The shortest of some round trips shows it best.
        """
        found = []
        for _ in range(tries):
            before = time.time()
            seconds, micros = await self._caller.command("TIME")
            after = time.time()
            found.append((after - before, (before + after) / 2 - (int(seconds) + int(micros) / 1e6)))
        round_trip, skew = min(found)
        return skew, round_trip

    async def clients(self) -> list[dict[str, str]]:
        """Returns the server's connections."""
        return await list_clients(self._caller)


async def list_clients(caller: Caller, *kind: str) -> list[dict[str, str]]:
    """Returns the connections of a server, each as names and values.

    Args:
        caller: Asks the server.
        *kind: Further words of ``CLIENT LIST``, for example ``TYPE normal``.

    Raises:
        ScriptError: The server does not know the command.
        AccessDenied: The user may not list connections.
    """
    raw: bytes = await caller.command("CLIENT", "LIST", *kind)
    return [
        dict(part.split("=", 1) for part in line.split(" ") if "=" in part)
        for line in raw.decode("utf-8", "replace").splitlines()
    ]
