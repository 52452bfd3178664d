"""The skeleton of every maintenance loop of a worker."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from oxcart.model.errors import OxcartError

log = logging.getLogger("oxcart.maintenance")


class Looper:
    """One periodic concern: runs `tick` every `interval` seconds until cancelled.

    No error ends the loop: one odd record of a peer would otherwise end every worker that reads it. The first
    of several in a row is logged with the time of the next attempt, and with its traceback unless it is an
    error of the server.

    Args:
        queue: The queue that the concern is about, for log lines; empty for none.

    Attributes:
        name: What the loop does, for log lines: ``webhook sweep``.
        interval: Seconds between two ticks.
        delay: Seconds before the first tick.
        begun: Set after the first tick, whether it succeeded or not.
    """

    name = "maintenance"
    interval = 1.0
    delay = 0.0

    def __init__(self, queue: str = "") -> None:
        self.queue = queue
        self.begun = asyncio.Event()
        self._sooner = asyncio.Event()
        self._failures = 0
        self._pause: float | None = None  # until the first tick

    async def tick(self) -> float | None:
        """Does the work once; returns the seconds until the next tick, or None for the interval."""
        raise NotImplementedError

    def soon(self) -> None:
        """Makes the next tick due now."""
        self._sooner.set()

    def retry_after(self, failures: int) -> float:
        """Returns the seconds to wait after so many failures in a row."""
        return self.interval

    async def close(self) -> None:
        """Releases what the loop holds when it ends."""

    async def step(self) -> None:
        """Ticks once and logs a failure; `run` continues from there."""
        self._sooner.clear()
        try:
            wanted = await self.tick()
            self._failures, self._pause = 0, self.interval if wanted is None else wanted
        except Exception as error:
            self._failures += 1
            # A loop without an interval must not spin on an error.
            self._pause = self.retry_after(self._failures) or 1.0
            self._log(error)
        self.begun.set()

    async def run(self) -> None:
        """Ticks until cancelled."""
        try:
            pause = self.delay if self._pause is None else self._pause
            if pause:  # a loop without a delay ticks before the worker's first claim
                await self._wait(pause)
            while True:
                await self.step()
                await self._wait(self._pause or 0.0)
        finally:
            await self.close()

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._sooner.wait()

    def _log(self, error: Exception) -> None:
        is_expected = isinstance(error, OxcartError | TimeoutError)
        level = logging.DEBUG
        if self._failures == 1:
            level = logging.WARNING if is_expected else logging.ERROR
        log.log(
            level,
            "%s%s failed, retrying in %.3g s: %s",
            f"queue {self.queue}: " if self.queue else "",
            self.name,
            self._pause,
            str(error) or type(error).__name__,
            exc_info=None if is_expected else error,
        )
