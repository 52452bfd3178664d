"""Keeps an operation on many jobs to a rate."""

from __future__ import annotations

import asyncio
import math


class Pace:
    """Keeps an operation to a number of jobs per second, from now on.

    Args:
        rate: How many jobs per second; None for no limit.
    """

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()

    def most(self, step: int) -> int:
        """Returns how many jobs one step may take, at most ``step``."""
        return step if self._rate is None else min(step, max(1, math.floor(self._rate)))

    async def wait(self, done: int) -> None:
        """Waits until so many jobs since the beginning keep to the rate."""
        if self._rate is not None:
            await asyncio.sleep(max(0.0, self._began + done / self._rate - self._loop.time()))
