"""The rooms that are tried, the tests that judge each, and the survivors that are explained.

`rooms.toml` holds them::

    [[room]]
    name = "model/backoff"                    # the file below src/oxcart, without .py
    tests = ["tests/model/test_backoff.py"]   # tests/<folder>/test_<file>.py by default

    [[explained]]
    room = "model/backoff"
    before = "if delay < 0:"                  # the changed lines, stripped
    after = "if delay <= 0:"
    why = "A delay of 0 is the same either way."
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.mutants.catalogue import PACKAGE, SOURCE
from tests.mutants.page import ROOT

LIST = Path(__file__).with_name("rooms.toml")


@dataclass(frozen=True, slots=True)
class Change:
    """A mutant of a file.

    Attributes:
        operator: What made it.
        line: Where it begins.
        before: The lines that it changes.
        after: What they become.
    """

    operator: str
    line: int
    before: str
    after: str

    def applied(self, text: str) -> str:
        """Returns a file's text with the change in it."""
        lines = text.split("\n")
        start, many = self.line - 1, self.before.count("\n") + 1
        if "\n".join(lines[start : start + many]) != self.before:
            raise ValueError(f"line {self.line} is not {self.before!r}")
        return "\n".join([*lines[:start], *self.after.split("\n"), *lines[start + many :]])

    def __str__(self) -> str:
        return f"line {self.line}, {self.operator}: {self.before.strip()}  ->  {self.after.strip()}"


@dataclass(frozen=True, slots=True)
class Room:
    """A file and the tests that judge its mutants.

    Attributes:
        name: The file, without its ending.
        tests: The files of its tests.
        source: The folder of the package.
    """

    name: str
    tests: tuple[str, ...]
    source: Path = SOURCE

    @property
    def file(self) -> str:
        return f"{self.name}.py"

    @property
    def path(self) -> Path:
        return self.source / PACKAGE / self.file


@dataclass(frozen=True, slots=True)
class Explained:
    """Mutants of a room that may survive: all whose change is this one, at any line."""

    room: str
    before: str
    after: str
    why: str

    def fits(self, room: Room, change: Change) -> bool:
        return (self.room, self.before, self.after) == (
            room.name,
            change.before.strip(),
            change.after.strip(),
        )


@cache
def rooms() -> dict[str, Room]:
    """Returns all rooms by name."""
    found = {}
    for fields in tomllib.loads(LIST.read_text("utf-8"))["room"]:
        folder, _, stem = fields["name"].rpartition("/")
        tests = fields.get("tests", [f"tests/{folder}/test_{stem}.py"])
        found[fields["name"]] = Room(fields["name"], tuple(tests))
    return found


@cache
def explained() -> tuple[Explained, ...]:
    """Returns all explanations."""
    found = tomllib.loads(LIST.read_text("utf-8")).get("explained", [])
    return tuple(Explained(**fields) for fields in found)


def stale() -> list[str]:
    """Returns one line for every room without its files, and for every explanation of a line that is gone."""
    lines = []
    for room in rooms().values():
        files = [room.path, *(ROOT / test.partition("::")[0] for test in room.tests)]
        lines += [f"{room.name}: {path} does not exist" for path in files if not path.is_file()]
    for one in explained():
        room_of = rooms().get(one.room)
        if room_of is None:
            lines.append(f"{one.room}: an explanation names no room")
        elif one.before not in room_of.path.read_text("utf-8"):
            lines.append(f"{one.room}: no line is {one.before!r}; take its explanation out")
    return lines
