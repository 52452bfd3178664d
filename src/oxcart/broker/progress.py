"""How an operation on many jobs reports its progress, on any protocol."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class Progress(msgspec.Struct, frozen=True):
    """How far an operation is.

    Attributes:
        step: What it works on now, for example ``delayed``.
        done: How many jobs it has dealt with; how many keys it has seen, where it goes through all keys.
        total: How many there were about when it began.
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
    """Returns a report of one part of an operation that adds what earlier parts have done."""
    if not done or progress is silent:
        return progress
    return lambda at: progress(Progress(at.step, at.done + done, at.total + done))
