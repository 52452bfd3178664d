"""The five formal priorities and their numbers on the wire.

They are for queues that were declared ``Queue(…, priorities="formal")``; everywhere else a priority is the
wire's number, of which a lower one runs first and 0 before every other.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from oxcart.model.errors import ValidationError


class Priority(IntEnum):
    """How soon a job is to run; of equals the one that was added first."""

    CRITICAL = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3
    BULK = 4


_BOUND = "one of " + ", ".join(each.name.lower() for each in Priority)


def formal_priority(value: Any, field: str = "priority") -> int:
    """The wire's number of a formal priority, given by its name or as that number.

    Raises:
        ValidationError: It is none.
    """
    if isinstance(value, str):
        try:
            return int(Priority[value.upper()])
        except KeyError:
            raise ValidationError(field, _BOUND, value) from None
    if isinstance(value, bool) or not isinstance(value, int) or value not in Priority.__members__.values():
        raise ValidationError(field, _BOUND, value)
    return int(value)
