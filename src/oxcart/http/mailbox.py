"""What waits to be sent on one open connection; it ends when its reader is too far behind."""

from __future__ import annotations

import asyncio


class Mailbox:
    """Messages for one reader.

    Args:
        most: Messages that may wait.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: list[bytes] = []
        self._ended = False
        self._reader: asyncio.Future[None] | None = None

    @property
    def is_ended(self) -> bool:
        """Whether the connection ends."""
        return self._ended

    def offer(self, message: bytes) -> None:
        """Hands a message over; ends the connection if its reader is too far behind."""
        if self._ended:
            return
        if len(self._waiting) >= self._most:
            self.end()
            return
        self._waiting.append(message)
        self._wake()

    def end(self) -> None:
        """Ends the connection. Messages that wait are dropped, so that the reader learns of it at once."""
        self._ended = True
        self._waiting.clear()
        self._wake()

    async def take(self) -> bytes | None:
        """Waits for messages and returns all of them in one piece; None at the end."""
        while not self._waiting:
            if self._ended:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        found = b"".join(self._waiting)
        self._waiting.clear()
        return found

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
