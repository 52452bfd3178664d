"""The limits of a job's type, which a Bridge job carries in its record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from oxcart.model.errors import ValidationError

_KEYS = ("max_concurrent", "max_per_minute")


class RateLimit(msgspec.Struct, frozen=True):
    """The limits of a job's type.

    Attributes:
        max_concurrent: The most jobs of the type that run at once, or None for no limit.
        max_per_minute: The most starts of the type in a minute, or None for no limit. The minute is a fixed
            window that begins with the first start.
    """

    max_concurrent: int | None = None
    max_per_minute: int | None = None

    @classmethod
    def parse(cls, value: Any, field: str = "rate_limit") -> RateLimit | None:
        """Parses limits: None, a `RateLimit`, or a mapping of the attributes.

        Raises:
            ValidationError: The value is none of these, or outside its bound.
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
