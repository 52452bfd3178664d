"""The messages that wait for one open connection; it ends when its reader is too far behind."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

M = TypeVar("M")


class Mailbox(Generic[M]):
    """Messages for one reader.

    Args:
        most: Messages that may wait.

    Attributes:
        messages: The messages; None ends the connection.
    """

    def __init__(self, most: int) -> None:
        self.messages: asyncio.Queue[M | None] = asyncio.Queue(most)

    def offer(self, message: M) -> None:
        """Hands a message over; ends the connection if its reader is too far behind."""
        try:
            self.messages.put_nowait(message)
        except asyncio.QueueFull:
            self.end()

    def end(self) -> None:
        """Ends the connection. Messages that wait are dropped, so that the reader learns of it at once."""
        while not self.messages.empty():
            self.messages.get_nowait()
        self.messages.put_nowait(None)
