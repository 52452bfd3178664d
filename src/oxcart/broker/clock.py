"""The server's time, as a client knows it.

Scripts decide by the server's clock what is due, expired or stalled (docs/decisions/62), so a client whose
clock is wrong does no harm. A client that must decide itself, for example when to ask again, uses this
estimate. Every answer that carries the server's time bounds the difference between both clocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oxcart.broker.caller import Caller


def now_ms() -> int:
    """The wall clock of this machine in ms."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Ms of a clock that is never set."""
    return time.monotonic_ns() // 1_000_000


class ServerClock:
    """Estimates a server's time in ms; calling it returns the time.

    It runs on the monotonic clock, so a step of this machine's clock changes nothing. Before the first answer
    it shows this machine's wall clock.

    Args:
        given: A clock that replaces the server's, for tests: scripts then use its times.
    """

    def __init__(self, given: Callable[[], int] | None = None) -> None:
        self._given = given
        self._ahead = now_ms() - monotonic_ms()
        #: Whether an answer has contained the server's time.
        self.is_known = False

    def __call__(self) -> int:
        """The server's time in ms."""
        return monotonic_ms() + self._ahead if self._given is None else self._given()

    @property
    def argument(self) -> int | str:
        """The time as an argument of a script: empty for the server's, else that of the replacing clock."""
        return "" if self._given is None else self._given()

    def learn(self, sent_ms: int, server_ms: int) -> None:
        """Learns from an answer.

        The server read its clock between the call and now. An estimate within these bounds stays; another one
        moves to the nearer bound, so a slow answer spoils nothing.

        Args:
            sent_ms: When the call was sent, as ``monotonic_ms``.
            server_ms: The server's time in the answer.
        """
        least, most = server_ms - monotonic_ms(), server_ms - sent_ms
        if not least <= self._ahead <= most:
            self._ahead = least if self._ahead < least else most
        self.is_known = True

    @property
    def skew_ms(self) -> int:
        """How far this machine's wall clock is ahead of the server's, in ms; negative if it is behind."""
        return now_ms() - monotonic_ms() - self._ahead

    @property
    def is_given(self) -> bool:
        """Whether a clock replaces the server's."""
        return self._given is not None


def time_left(timeout: float | None) -> Callable[[], float | None]:
    """Returns a function that returns the seconds left of a timeout, for calls that share it."""
    if timeout is None:
        return lambda: None
    end = time.monotonic() + timeout
    return lambda: max(0.0, end - time.monotonic())


async def server_now(caller: Caller, clock: ServerClock, timeout: float | None = None) -> int:
    """Asks a server for its time in ms, unless a clock replaces it."""
    if not clock.is_given:
        sent = monotonic_ms()
        seconds, micros = await caller.command("TIME", timeout=timeout)
        clock.learn(sent, int(seconds) * 1000 + int(micros) // 1000)
    return clock()
