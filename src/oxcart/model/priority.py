"""The five formal priorities and their numbers on the wire.

Queues with ``Queue(…, priorities="formal")`` use them. On other queues a priority is the wire's number: a
lower number runs first, and 0 before all others.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from oxcart.model.errors import ValidationError


class Priority(IntEnum):
    """The priority of a job. Jobs of equal priority run in the order of their adds."""

    CRITICAL = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3
    BULK = 4


_BOUND = "one of " + ", ".join(each.name.lower() for each in Priority)


def formal_priority(value: Any, field: str = "priority") -> int:
    """Returns the wire's number of a formal priority, given by name or number.

    Raises:
        ValidationError: There is no such priority.
    """
    if isinstance(value, str):
        try:
            return int(Priority[value.upper()])
        except KeyError:
            raise ValidationError(field, _BOUND, value) from None
    if isinstance(value, bool) or not isinstance(value, int) or value not in Priority.__members__.values():
        raise ValidationError(field, _BOUND, value)
    return int(value)
