"""Hides what a caller may not read: payloads and results by role, and fields of them by pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate
from typing import Any

from oxcart.model.errors import ValidationError

#: What stands in place of a masked value.
MASKED = "[masked]"


class Masks:
    """Replaces the values of fields whose names match a pattern, at any depth of a JSON value.

    Args:
        patterns: Names of fields with ``*`` and ``?``, in any case: ``password``, ``*token*``.

    Raises:
        ValidationError: A pattern is empty.
    """

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        given = [pattern.strip() for pattern in patterns]
        if not all(given):
            raise ValidationError("mask", "names of fields such as password or *token*", "")
        joined = "|".join(translate(pattern) for pattern in given)
        self._names = re.compile(joined, re.IGNORECASE) if given else None

    def apply(self, value: Any) -> Any:
        """Returns a value with the matching fields masked; the value itself stays as it is.

        Example:
            >>> Masks(["*token*"]).apply({"user": 1, "deep": [{"API_TOKEN": "x"}]})
            {'user': 1, 'deep': [{'API_TOKEN': '[masked]'}]}
        """
        return value if self._names is None else self._masked(value, self._names)

    def _masked(self, value: Any, names: re.Pattern[str]) -> Any:
        if isinstance(value, dict):
            return {
                name: MASKED if isinstance(name, str) and names.fullmatch(name) else self._masked(item, names)
                for name, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._masked(item, names) for item in value]
        return value
