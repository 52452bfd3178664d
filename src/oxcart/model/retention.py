"""Retention: how many ended jobs stay, and for how long."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import msgspec

from oxcart.model.duration import parse_ms
from oxcart.model.errors import ValidationError

#: Above this count the trimming at each finish, and every listing, becomes slow.
LARGE_COUNT = 10_000

_KEYS = ("age", "count", "limit")


class RetentionWarning(UserWarning):
    """A retention is valid but costs memory and time."""


class Retention(msgspec.Struct, frozen=True):
    """The retention of ended jobs.

    Attributes:
        age: Remove jobs that ended more than this many seconds ago; None is no bound.
        count: Keep at most this many, newest first; 0 removes at once, -1 keeps all, None is no bound.
        limit: The most jobs that one finish removes by age.
    """

    age: int | None = None
    count: int | None = None
    limit: int | None = None

    @classmethod
    def parse(
        cls, value: bool | int | Mapping[str, Any] | Retention | None, field: str = "remove_on_complete"
    ) -> Retention | None:
        """Parses and checks a user's retention.

        Args:
            value: True removes at once, False keeps all, a number keeps that many, a mapping may set
                `age` (a duration), `count` and `limit`; None uses the worker's, or else the queue's.
            field: The name of the option, for the error.

        Raises:
            ValidationError: The value is none of these, or negative.
        """
        if value is None:
            return None
        if value is True:
            return REMOVE
        if value is False:
            return KEEP
        if isinstance(value, Retention):
            if value in (KEEP, REMOVE):
                return value
            value = {key: part for key in _KEYS if (part := getattr(value, key)) is not None}
        if isinstance(value, Mapping):
            return cls._from_mapping(value, field)
        return cls(count=_count(value, field))

    @classmethod
    def _from_mapping(cls, value: Mapping[str, Any], field: str) -> Retention:
        for key in value:
            if key not in _KEYS:
                raise ValidationError(field, f"made of {', '.join(_KEYS)}", key)
        age, count, limit = (value.get(key) for key in _KEYS)
        if age is None and count is None:
            raise ValidationError(field, "an object with an age or a count", dict(value))
        if limit is not None and (type(limit) is not int or limit < 1):
            raise ValidationError(f"{field}.limit", "an integer of at least 1", limit)
        return cls(
            # The wire counts in seconds; rounding up keeps a job slightly longer instead of too short.
            age=None if age is None else -(-parse_ms(age, f"{field}.age", minimum=1) // 1000),
            count=None if count is None else _count(count, f"{field}.count"),
            limit=limit,
        )

    def wire(self) -> bool | int | dict[str, int]:
        """Returns the value of ``opts.removeOnComplete`` or ``opts.removeOnFail``."""
        if self == KEEP:
            return False
        if self.age is None and self.limit is None and self.count is not None:
            return self.count or True
        return {key: part for key in _KEYS if (part := getattr(self, key)) is not None}

    @classmethod
    def from_wire(cls, obj: Any) -> Retention | None:
        """Parses a peer's value; an invalid one counts as none."""
        if isinstance(obj, bool):
            return REMOVE if obj else KEEP
        if not isinstance(obj, Mapping):
            obj = {"count": obj}
        parts = {key: part for key in _KEYS if (part := _lenient(obj.get(key))) is not None}
        return cls(**parts) if parts else None


#: How long a queue that Oxcart creates keeps completed and failed jobs whose job and worker do not say it, in
#: seconds; ``lua/parts/base.lua`` writes it.
DEFAULT_AGES = (86_400, 2_592_000)

#: Keep every job until a user removes it.
KEEP = Retention(count=-1)

#: Remove a job when it ends.
REMOVE = Retention(count=0)


def _lenient(value: Any) -> int | None:
    if type(value) is int or (isinstance(value, float) and math.isfinite(value)):
        return max(int(value), -1)
    return None


def _count(value: Any, field: str) -> int:
    if type(value) is not int or value < 0:
        raise ValidationError(field, "True, False, an integer of at least 0 or {age, count, limit}", value)
    if value > LARGE_COUNT:
        warnings.warn(
            f"{field} keeps {value} jobs; more than {LARGE_COUNT} cost memory and slow every finish",
            RetentionWarning,
            stacklevel=4,
        )
    return value
