"""docs/conformance.md names the test of every rule: names must lead somewhere, no rule may be missing."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "conformance.md").read_text()

#: The numbered rules of the specification: sections with their number of rules.
NUMBERED = {3: 5, 4: 4, 5: 4, 6: 5}


def test_every_test_that_the_page_names_exists() -> None:
    source = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    known = set(re.findall(r"(?:def|class) (test_\w+|Test\w+)", source))
    named = set(re.findall(r"`(test_\w+|Test\w+)`", PAGE))
    assert len(named) > 50
    assert named <= known, sorted(named - known)
    for path in re.findall(r"`(tests/[\w/.]+\.py)`", PAGE):
        assert (ROOT / path).exists(), path


def test_every_row_names_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| rule |")]
    bare = [
        row for row in rows if not re.search(r"`(test_\w+|Test\w+|tests/[\w/.]+\.py)`", row.rsplit("|", 2)[1])
    ]
    assert len(rows) > 50
    assert not bare


def test_every_numbered_rule_is_here_or_said_to_be_missing() -> None:
    proved, _, missing = PAGE.partition("## Not built yet")
    for section, rules in NUMBERED.items():
        for number in range(1, rules + 1):
            rule = f"§{section}.{number} "
            assert (f"| {rule}" in proved) != (f"- {rule}" in missing), rule
    for section in range(1, 11):
        assert f"§{section}" in PAGE
