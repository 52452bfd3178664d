"""The progress a handler may report."""

from __future__ import annotations

from typing import Any

from oxcart.model.errors import ValidationError


def check_progress(value: Any, field: str = "progress") -> int | float | dict[Any, Any]:
    """Return a progress that may be written.

    Peers may write anything, and what they wrote is read as it is; what we write keeps to the model, so
    that a percentage is a percentage wherever it is shown.

    Args:
        value: A number from 0 to 100, or an object of the application's own.
        field: What the value is, for the error.

    Raises:
        ValidationError: It is neither.

    Example:
        >>> check_progress(42.5)
        42.5
    """
    if isinstance(value, dict):
        return value
    # NaN compares false with everything, so the range keeps it out as well.
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 100:
        return value
    raise ValidationError(field, "a number from 0 to 100 or an object", value)
