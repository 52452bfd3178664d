"""Durations: users write seconds or text, the wire has milliseconds."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from oxcart.model.errors import ValidationError

#: What every option of a duration accepts: seconds, ``"1h30m"`` or a timedelta.
Duration = int | float | str | timedelta

#: The longest duration, a hundred years: a later due time does not fit the scores of the delayed set.
MAX_MS = 100 * 365 * 86_400_000

_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")

_FORM = "a duration: seconds, a timedelta, or text such as '250ms', '30s', '1h30m', '2d'"


def parse_ms(value: Duration, field: str, *, minimum: int = 0) -> int:
    """Converts a duration into whole milliseconds.

    Numbers, also as text, are seconds. Rounding never turns a positive duration into zero.

    Args:
        value: The duration.
        field: The name of the option, for the error.
        minimum: The smallest allowed value in milliseconds.

    Raises:
        ValidationError: The value is no duration, or is outside its bounds.

    Example:
        >>> parse_ms("1h30m", "timeout")
        5400000
        >>> parse_ms(0.25, "delay")
        250
    """
    exact = _milliseconds(value, field)
    if exact > MAX_MS:
        raise ValidationError(field, "at most 100 years", value)
    # Negative values first: a value that rounds up to zero is still negative, and -inf cannot be rounded.
    whole = -1 if exact < 0 else round(exact)
    if whole == 0 and exact > 0:
        whole = 1
    if whole < minimum:
        raise ValidationError(field, f"at least {minimum} ms" if minimum else "at least 0", value)
    return whole


def _milliseconds(value: Duration, field: str) -> float:
    if isinstance(value, bool):  # True is an int to Python, but never a number of seconds
        raise ValidationError(field, _FORM, value)
    if isinstance(value, int):
        return value * 1000
    if isinstance(value, float):
        if math.isnan(value):
            raise ValidationError(field, _FORM, value)
        return value * 1000
    if isinstance(value, timedelta):
        return value / timedelta(milliseconds=1)
    if isinstance(value, str):
        text = value.strip()
        if _WHOLE.fullmatch(text):
            return sum(float(number) * _UNIT_MS[unit] for number, unit in _PART.findall(text))
        if _NUMBER.fullmatch(text):
            return float(text) * 1000
    raise ValidationError(field, _FORM, value)
