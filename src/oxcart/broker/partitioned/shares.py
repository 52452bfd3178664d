"""How a limit is divided among partitions, and how the shares change while jobs run."""

from __future__ import annotations

from collections.abc import Sequence

from oxcart.model.errors import ValidationError
from oxcart.model.partitions import Layout


def shares(total: int, layout: Layout, field: str = "most") -> list[int]:
    """Divides a limit among the partitions of a layout.

    Raises:
        ValidationError: It is lower than the number of partitions.
    """
    if total < layout.served:
        raise ValidationError(field, f"at least {layout.served}, one per partition of the queue", total)
    rest = total - (layout.served - layout.size)
    each, more = divmod(rest, layout.size)
    own = [each + (number < more) for number in range(layout.size)]
    return own + [1] * (layout.served - layout.size)


def divided(
    own: Sequence[int], present: Sequence[int | None], running: Sequence[int], least: int = 0
) -> list[int]:
    """Returns the shares that hold now: their sum is that of ``own``.

    A partition in which more jobs run than its share keeps the places of these, as far as they are within its
    present share. Others get so many fewer.

    Args:
        own: The shares when nothing runs.
        present: The present shares; None for none.
        running: How many jobs run in each partition.
        least: The lowest share.
    """
    beyond = [
        max(0, (many if now is None else min(now, many)) - share)
        for share, now, many in zip(own, present, running, strict=True)
    ]
    found = [share + more for share, more in zip(own, beyond, strict=True)]
    debt = sum(beyond)
    for number in reversed(range(len(found))):
        if not beyond[number]:
            less = max(0, min(debt, own[number] - max(running[number], least)))
            found[number] -= less
            debt -= less
    for number in reversed(range(len(found))):  # more runs than the limit permits: it ends by itself
        less = min(debt, beyond[number])
        found[number] -= less
        debt -= less
    return found


def seeds(own: Sequence[int], present: Sequence[int | None], used: Sequence[int]) -> list[int]:
    """Returns how many starts to count in each partition that grows: a window permits no more than ``own``.

    Args:
        own: The new shares of a rate.
        present: The present shares; None for none.
        used: How many jobs each partition started in its present window.
    """
    grow = [now is None or share > now for share, now in zip(own, present, strict=True)]
    taken = sum(many if more else max(many, share) for share, many, more in zip(own, used, grow, strict=True))
    room = max(0, sum(own) - taken)
    found = []
    for share, many, more in zip(own, used, grow, strict=True):
        lacks = max(0, share - many) if more else 0
        gets = min(room, lacks)
        room -= gets
        found.append(lacks - gets)
    return found
