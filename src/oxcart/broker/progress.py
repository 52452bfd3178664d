"""Reports the progress of an operation on many jobs, on any protocol."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class Progress(msgspec.Struct, frozen=True):
    """How far an operation is.

    Attributes:
        step: What it works on now, for example ``delayed``.
        done: How many jobs it has processed; how many keys it has seen, if it scans all keys.
        total: About how many there were when it began.
        suspects: How many jobs may be lost so far, where it looks for these.
    """

    step: str
    done: int
    total: int
    suspects: int = 0


OnProgress = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """Reports nothing."""


def after(done: int, progress: OnProgress) -> OnProgress:
    """Returns a callback for one part of an operation that adds the progress of earlier parts."""
    if not done or progress is silent:
        return progress
    return lambda at: progress(Progress(at.step, at.done + done, at.total + done))
