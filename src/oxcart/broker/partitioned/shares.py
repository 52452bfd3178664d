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


def granted(own: Sequence[int], left: Sequence[int]) -> list[int]:
    """Returns the shares that hold now: their sum is that of ``own`` at most.

    A partition keeps what it was left for the jobs that it runs; others get so many fewer.

    Args:
        own: The shares when nothing runs.
        left: The shares after each partition shrank to its own, or to the jobs that it runs.
    """
    found, room = list(left), sum(own) - sum(left)
    for number in reversed(range(len(found))):  # more runs than the limit permits: it ends by itself
        less = max(0, min(-room, found[number] - own[number]))
        found[number] -= less
        room += less
    for number, share in enumerate(own):
        more = max(0, min(room, share - found[number]))
        found[number] += more
        room -= more
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
