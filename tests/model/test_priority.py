"""Formal priorities: names and numbers, and what is none of them."""

from __future__ import annotations

from typing import Any

import pytest

from oxcart.model.errors import ValidationError
from oxcart.model.priority import Priority, formal_priority

NUMBERS = {"critical": 0, "high": 1, "normal": 2, "low": 3, "bulk": 4}


@pytest.mark.parametrize(("name", "number"), NUMBERS.items())
def test_a_name_and_its_number_are_the_same_priority(name: str, number: int) -> None:
    given = (name, name.upper(), name.title(), number, Priority[name.upper()])
    assert [formal_priority(one) for one in given] == [number] * len(given)
    assert {type(formal_priority(one)) for one in given} == {int}


@pytest.mark.parametrize("value", [-1, 5, True, False, 1.0, None, "urgent", "", " high", b"high", [], "2"])
def test_anything_else_is_refused_with_its_field_and_all_names(value: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        formal_priority(value)
    text = f"priority must be one of critical, high, normal, low, bulk, got {value!r}"
    assert str(refused.value) == text
    with pytest.raises(ValidationError, match=r"^level must be one of critical"):
        formal_priority(value, "level")
