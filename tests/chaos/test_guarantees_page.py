"""docs/guarantees.md names the tests of every guarantee, and the names exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_page_names_exists() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) > 40
    source = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    known = set(re.findall(r"def (test_\w+)\(", source))
    assert named <= known, sorted(named - known)
    for path in re.findall(r"`(tests/[\w/.]+\.py)`", page):
        assert (ROOT / path).exists(), path


def test_every_row_of_its_tables_names_a_test() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and "|---" not in line]
    bare = [row for row in rows if "test" not in row.rsplit("|", 2)[1] and "shown by" not in row]
    assert not bare
