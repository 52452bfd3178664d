"""How many jobs of a type may run at once and in a minute, as a job of the type says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from oxcart.model.errors import ValidationError

_KEYS = ("max_concurrent", "max_per_minute")


class RateLimit(msgspec.Struct, frozen=True):
    """The limits of a job's type.

    Attributes:
        max_concurrent: The job starts only while fewer of its type run; None for no such limit.
        max_per_minute: ... while fewer of its type were started in this minute, a fixed window that begins
            with the first start; None for no such limit.
    """

    max_concurrent: int | None = None
    max_per_minute: int | None = None

    @classmethod
    def parse(cls, value: Any, field: str = "rate_limit") -> RateLimit | None:
        """Reads limits as a user writes them: None, one of these, or a mapping of the attributes.

        Raises:
            ValidationError: They are none, or outside their bound.
        """
        if value is None:
            return None
        if isinstance(value, RateLimit):
            value = {key: part for key in _KEYS if (part := getattr(value, key)) is not None}
        if not isinstance(value, Mapping) or not value:
            raise ValidationError(field, "an object with max_concurrent or max_per_minute", value)
        for key, most in value.items():
            if key not in _KEYS:
                raise ValidationError(field, f"made of {', '.join(_KEYS)}", key)
            if most is not None and (type(most) is not int or most < 1):
                raise ValidationError(f"{field}.{key}", "an integer, at least 1", most)
        return cls(**value)
