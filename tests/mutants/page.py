"""Reads docs/conformance.md: its rows, and the tests that each row names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "conformance.md"

_NAME = re.compile(r"`(test_\w+|Test\w+)`")
_FILE = re.compile(r"(in )?`(tests/[\w/]+\.py)`")
_DEFINED = re.compile(r"^( *)(?:async )?(?:def|class) (test_\w+|Test\w+)", re.MULTILINE)


class PageError(ValueError):
    """The page names a test that does not exist, or one of several without its file."""


@dataclass(frozen=True, slots=True)
class Row:
    """One rule of the page.

    Attributes:
        section: The heading above the row.
        rule: The text of the rule.
        shown_by: The cell that names the tests.
    """

    section: str
    rule: str
    shown_by: str

    def tests(self) -> dict[str, tuple[str, ...]]:
        """Returns the node ids of pytest for each test that the row names.

        A file after ``in`` narrows the names before it. Any other file stands for all its tests.

        Raises:
            PageError: A name leads nowhere, or into several files.
        """
        found: dict[str, tuple[str, ...]] = {}
        for part in self.shown_by.split(";"):
            files = [(bool(mark), path) for mark, path in _FILE.findall(part)]
            within = next((path for narrows, path in files if narrows), None)
            for name in _NAME.findall(part):
                found[name] = _places(name, within)
            for narrows, path in files:
                if not (ROOT / path).exists():
                    raise PageError(f"{path} does not exist")
                if not narrows:
                    found[path] = (path,)
        return found


@cache
def rows(page: str | None = None) -> tuple[Row, ...]:
    """Returns the rows of the page, or of another page's text."""
    return tuple(_read(PAGE.read_text() if page is None else page))


def _read(page: str) -> Iterator[Row]:
    section = ""
    for line in page.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("| ") and not line.startswith("| rule |"):
            _, rule, shown_by, _ = line.split("|")
            yield Row(section, rule.strip(), shown_by.strip())


@cache
def _defined() -> dict[str, list[tuple[str, str]]]:
    """Every test and class of tests by its name: the file and the node id of each definition."""
    found: dict[str, list[tuple[str, str]]] = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        if "node_modules" in file.parts:
            continue
        path = file.relative_to(ROOT).as_posix()
        owner = ""
        for indent, name in _DEFINED.findall(file.read_text()):
            if not indent:
                owner = name if name.startswith("Test") else ""
            node = f"{path}::{owner}::{name}" if indent else f"{path}::{name}"
            found.setdefault(name, []).append((path, node))
    return found


def _places(name: str, within: str | None) -> tuple[str, ...]:
    places = [(path, node) for path, node in _defined().get(name, []) if within in (None, path)]
    if not places:
        raise PageError(f"no test is named {name}" + (f" in {within}" if within else ""))
    if len({path for path, _ in places}) > 1:
        raise PageError(
            f"{name} is the name of several tests: write its file after it, as in `{places[0][0]}`"
        )
    return tuple(node for _, node in places)
