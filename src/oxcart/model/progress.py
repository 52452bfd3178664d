"""The progress that a handler reports."""

from __future__ import annotations

from typing import Any

from oxcart.model.errors import ValidationError


def check_progress(value: Any, field: str = "progress") -> int | float | dict[Any, Any]:
    """Returns a progress that may be written.

    Readers accept any progress of a peer. Oxcart writes only percentages and objects, so that every
    display can show them.

    Args:
        value: A number from 0 to 100, or an object.
        field: The name of the option, for the error.

    Raises:
        ValidationError: It is neither.

    Example:
        >>> check_progress(42.5)
        42.5
    """
    if isinstance(value, dict):
        return value
    # NaN compares false with everything, so the range excludes it as well.
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 100:
        return value
    raise ValidationError(field, "a number from 0 to 100 or an object", value)
