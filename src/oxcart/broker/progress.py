"""How an operation on many jobs tells how far it is, on any protocol.

May touch: nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class Progress(msgspec.Struct, frozen=True):
    """How far an operation is.

    Attributes:
        step: What it works on now, for example ``delayed``.
        done: How many jobs it has dealt with.
        total: How many there were about when it began.
    """

    step: str
    done: int
    total: int


Told = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """Tells nobody."""
