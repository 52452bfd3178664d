"""Wakes tasks of any event loop."""

from __future__ import annotations

import asyncio
import contextlib


class Signal:
    """Lets tasks wait for the next time that it fires; they may run in loops of several threads."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def fire(self) -> None:
        """Wakes all tasks that wait."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                future.get_loop().call_soon_threadsafe(_wake, future)

    def next(self) -> asyncio.Future[None]:
        """Returns a future of this loop that the next firing completes."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def forget(self, future: asyncio.Future[None]) -> None:
        """Drops a future that no task waits for."""
        future.cancel()
        if future in self._waiting:
            self._waiting.remove(future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
