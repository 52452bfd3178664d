"""docs/conformance.md names the test of every rule: no row without one, and the names must lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "conformance.md").read_text()


def test_every_test_that_the_page_names_exists() -> None:
    source = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    known = set(re.findall(r"(?:def|class) ((?:test_|Test)\w+)", source))
    named = set(re.findall(r"`((?:test_|Test)\w+)`", PAGE))
    assert named <= known, sorted(named - known)
    for path in re.findall(r"`(tests/[\w/.]+\.py)`", PAGE):
        assert (ROOT / path).exists(), path


def test_no_rule_is_without_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "|---" not in line]
    bare = [row for row in rows if "`" not in row.rsplit("|", 2)[1] and "shown by" not in row]
    assert len(rows) > 20
    assert not bare
