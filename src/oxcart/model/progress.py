"""The progress that a handler reports."""

from __future__ import annotations

from typing import Any

from oxcart.model.errors import ValidationError

#: The most characters of a message.
LONGEST_MESSAGE = 1000


def check_progress(
    value: Any, field: str = "progress", message: str | None = None
) -> int | float | dict[Any, Any]:
    """Returns a progress that may be written.

    Readers accept any progress of a peer. Oxcart writes only percentages and objects, so that every
    display can show them.

    Args:
        value: A number from 0 to 100, or an object.
        field: The name of the option, for the error.
        message: Text beside it, of 1 to 1 000 characters. The wire knows numbers and objects, so a number
            becomes the object ``{"percent": 50, "message": "…"}``; an object gets the field ``message``.

    Raises:
        ValidationError: It is neither, or the message is out of its bounds.

    Example:
        >>> check_progress(42.5)
        42.5
        >>> check_progress(50, message="halfway")
        {'percent': 50, 'message': 'halfway'}
    """
    if message is not None and not (isinstance(message, str) and 1 <= len(message) <= LONGEST_MESSAGE):
        raise ValidationError("message", f"text of 1 to {LONGEST_MESSAGE} characters", message)
    if isinstance(value, dict):
        return value if message is None else {**value, "message": message}
    # NaN compares false with everything, so the range excludes it as well.
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 100:
        return value if message is None else {"percent": value, "message": message}
    raise ValidationError(field, "a number from 0 to 100 or an object", value)
