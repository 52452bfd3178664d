"""Resizes in the model: no job is stuck in any order of steps, and every rule is needed for that."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tests.explorer.layout import LayoutRules, explore_layouts

#: A rule that the model leaves out, and what the exploration finds then.
FOUND = {
    "serves_both": "is not served",
    "looks_first": "is not served",
    "reclaims": "is stuck",
    "adds_below_size": "is not served",
    "takes_in": "is stuck",
}


def test_no_job_is_stuck_in_any_order() -> None:
    found = explore_layouts()
    assert found.fault == "", str(found)
    assert found.states > 1000


@pytest.mark.parametrize("rule", FOUND)
def test_a_rule_that_is_left_out_is_found(rule: str) -> None:
    found = explore_layouts(LayoutRules(**{rule: False}))
    assert FOUND[rule] in found.fault, str(found)
    assert len(found.way) <= 6


def test_every_rule_can_be_left_out() -> None:
    assert set(FOUND) == {field.name for field in fields(LayoutRules)}
