"""The signal that asks a processor to stop, and the controller that gives it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oxcart.engine.running import RunningJob


class AbortError(Exception):
    """A processor stopped because of its signal."""

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(reason or "The operation was aborted")
        self.reason = reason


class AbortSignal:
    """Whether to stop. Set by ``cancelJob``, by a forced close, and when the job's lock is lost."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._reason: str | None = None
        self._running: RunningJob | None = None

    @property
    def aborted(self) -> bool:
        """Whether to stop."""
        return self._event.is_set() or (self._running is not None and self._running.is_cancelled)

    @property
    def reason(self) -> str | None:
        """The reason, if one was given."""
        if self._reason is None and self._running is not None and not self._event.is_set():
            return self._running.cancel_reason
        return self._reason

    async def wait(self) -> None:
        """Returns as soon as the signal is given."""
        if self._running is None:
            await self._event.wait()
            return
        waits = (asyncio.ensure_future(self._event.wait()), asyncio.ensure_future(self._running.cancelled()))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()

    def throw_if_aborted(self) -> None:
        """Raises ``AbortError`` if the signal was given."""
        if self.aborted:
            raise AbortError(self.reason)


class AbortController:
    """Gives a signal, once."""

    def __init__(self) -> None:
        self.signal = AbortSignal()

    def abort(self, reason: str | None = None) -> None:
        """Gives the signal; later calls change nothing."""
        if not self.signal._event.is_set():
            self.signal._reason = reason
            self.signal._event.set()
