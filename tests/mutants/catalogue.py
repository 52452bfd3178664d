"""The mutants: small faults of the source, as data.

The TOML files of this folder hold them, one file for each section of the page::

    [[mutant]]
    name = "id-is-a-number"                  # unique, and what MUTANTS= selects by
    row = "§1 the id is a UUID v4"           # how the row begins
    file = "broker/bullmq/codec.py"          # below src/oxcart
    snippet = "str(uuid.uuid4())"            # occurs exactly once in the file
    becomes = "str(next(numbers))"           # what stands there instead
    tests = ["test_new_ids_are_random"]      # some of the row's tests; all of them by default

An entry of ``tests`` may go on after a name: ``TestTags::test_limits`` or ``test_waits[linear]``.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.mutants.page import ROOT, PageError, Row

FOLDER = Path(__file__).parent
SOURCE = ROOT / "src"
PACKAGE = "oxcart"


class StaleMutant(ValueError):
    """A mutant does not fit the source or the page."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: where it is put in, and the row whose tests must fail then."""

    name: str
    row: str
    file: str
    snippet: str
    becomes: str
    tests: tuple[str, ...] = ()

    def find_row(self, known: tuple[Row, ...]) -> Row:
        """Returns the only row that begins with the mutant's `row`.

        Raises:
            StaleMutant: There is no such row, or there are several.
        """
        found = [row for row in known if row.rule.startswith(self.row)]
        if len(found) != 1:
            raise StaleMutant(f"{self.name}: {len(found)} rows begin with {self.row!r}, expected 1")
        return found[0]

    def node_ids(self, row: Row) -> tuple[str, ...]:
        """Returns the tests that must notice the fault, as pytest names them.

        Raises:
            StaleMutant: The row does not name one of them.
        """
        try:
            named = row.tests()
        except PageError as error:
            raise StaleMutant(f"{self.name}: {error}") from error
        found = [] if self.tests else [node for nodes in named.values() for node in nodes]
        for test in self.tests:
            name = re.split(r"::|\[", test, maxsplit=1)[0]
            if name not in named:
                raise StaleMutant(f"{self.name}: the row does not name {name}: {row.rule}")
            found += [node + test.removeprefix(name) for node in named[name]]
        return tuple(dict.fromkeys(found))

    def mutated(self, source: Path = SOURCE) -> str:
        """Returns the text of the file with the fault in it.

        Raises:
            StaleMutant: The snippet does not occur exactly once, or Python cannot parse the result.
        """
        path = source / PACKAGE / self.file
        if not path.is_file():
            raise StaleMutant(f"{self.name}: {self.file} does not exist")
        text = path.read_text("utf-8")
        count = text.count(self.snippet)
        if count != 1:
            raise StaleMutant(f"{self.name}: {self.file} has the snippet {count} times: {self.snippet!r}")
        changed = text.replace(self.snippet, self.becomes)
        if changed == text:
            raise StaleMutant(f"{self.name}: the mutant changes nothing")
        if path.suffix == ".py":
            try:
                compile(changed, self.file, "exec")  # ast.parse may fail in a thread of Python 3.11
            except SyntaxError as error:
                raise StaleMutant(f"{self.name}: the mutant is not valid Python: {error}") from error
        return changed


@cache
def mutants(folder: Path = FOLDER) -> tuple[Mutant, ...]:
    """Returns all mutants of a folder, in the order of its files."""
    found: list[Mutant] = []
    for file in sorted(folder.glob("*.toml")):
        for fields in tomllib.loads(file.read_text("utf-8"))["mutant"]:
            found.append(Mutant(**{**fields, "tests": tuple(fields.get("tests", ()))}))
    return tuple(found)


def faults(found: tuple[Mutant, ...], known: tuple[Row, ...], source: Path = SOURCE) -> list[str]:
    """Returns one line for every mutant that does not fit, and for every row without a mutant."""
    lines: list[str] = []
    covered: set[Row] = set()
    names: set[str] = set()
    for mutant in found:
        if mutant.name in names:
            lines.append(f"{mutant.name}: two mutants have this name")
        names.add(mutant.name)
        try:
            row = mutant.find_row(known)
            covered.add(row)
            mutant.node_ids(row)
            mutant.mutated(source)
        except StaleMutant as error:
            lines.append(str(error))
    lines += [f"no mutant breaks the row: {row.rule}" for row in known if row not in covered]
    return lines
