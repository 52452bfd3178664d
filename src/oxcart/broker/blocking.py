"""Runs the broker's coroutines in code that has no event loop, such as a Spark task.

There is one client of the server, the asynchronous one. So addresses, TLS, Sentinels, clusters, repeats and
errors are the same for code that blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Blocking:
    """An event loop of its own in the calling thread; it runs only while `run` waits.

    A process or thread that was started after it needs another one.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Waits for a coroutine and returns its result.

        Raises:
            RuntimeError: An event loop runs in this thread already.
        """
        return self._runner.run(work)

    def close(self) -> None:
        """Cancels what is left in the loop, and closes it."""
        self._runner.close()
