"""docs/conformance.md names the tests of every rule: the names exist, and no rule is missing."""

from __future__ import annotations

import pytest

from tests.mutants import catalogue
from tests.mutants.page import PAGE, Row, rows

TEXT = PAGE.read_text()

#: The numbered rules of the specification: sections with their number of rules.
NUMBERED = {3: 5, 4: 4, 5: 4, 6: 5}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.rule[:60])
def test_every_row_names_tests_that_exist(row: Row) -> None:
    assert row.tests()


def test_every_numbered_rule_is_here_or_listed_as_missing() -> None:
    proved, _, missing = TEXT.partition("## Not built yet")
    for section, rules in NUMBERED.items():
        for number in range(1, rules + 1):
            rule = f"§{section}.{number} "
            assert (f"| {rule}" in proved) != (f"- {rule}" in missing), rule
    for section in range(1, 11):
        assert f"§{section}" in TEXT
    assert len(rows()) > 50


def test_every_row_has_a_mutant_and_every_mutant_fits() -> None:
    """`make conformance-mutants` runs them all. This test notices snippets that the source no longer has."""
    assert catalogue.faults(catalogue.mutants(), rows()) == []
