"""Operations on dead letters, on any protocol: what is to be done to which of them, and what came of it.

May touch: nothing.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from oxcart.broker.progress import Told, silent
from oxcart.model.filter import JobFilter

Doing = Literal["list", "replay", "purge"]


class DeadWork(msgspec.Struct, frozen=True):
    """What is to be done to which dead letters.

    Attributes:
        doing: What.
        chosen: To which.
        reset: Whether replayed ones count their attempts from the beginning.
        newest: Go from the newest end.
        limit: How many at most.
        rate: How many per second at most.
        told: Told after every step.
    """

    doing: Doing
    chosen: JobFilter = JobFilter()
    reset: bool = False
    newest: bool = False
    limit: int | None = None
    rate: float | None = None
    told: Told = silent


class DeadDone(msgspec.Struct, kw_only=True):
    """What came of an operation on dead letters.

    Attributes:
        matched: How many dead letters the filter chose.
        done: How many were replayed or removed; none in a dry run.
        ids: Those that were chosen.
        dry_run: Whether nothing was done.
    """

    matched: int = 0
    done: int = 0
    ids: list[str] = []
    dry_run: bool = False
