"""The ledger of notes: what must be built, by any history of notes, and without reading old notes again."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyarrow")

from oxcart.spark.build.notes import (
    Basis,
    Built,
    Ledger,
    fresh_days,
    fresh_files,
    without_dropped,
    write_notes,
)
from oxcart.spark.lake.bronze import write_rows
from oxcart.spark.lake.columns import BUILDS
from oxcart.spark.lake.files import FIRST_DAY, LakeConflict
from oxcart.spark.lake.versions import Change, Lake
from oxcart.spark.read.entries import rows_of

FIRST = date(2026, 11, 2)
QUEUES = ("a", "b", "c@lane")
_EPOCH = date(1970, 1, 1)

Known = dict[str, dict[str, Built]]


def day_at(number: int) -> str:
    return str(FIRST + timedelta(days=number))


class Book:
    """A lake whose notes and bronze the test writes.

    Args:
        root: The lake's folder.
    """

    def __init__(self, root: Path) -> None:
        self.lake = Lake(root)
        self.ledger = Ledger(self.lake)
        #: The notes by day, as they were written.
        self.known: Known = {}

    def look(self) -> Ledger:
        return self.ledger.look(self.lake.head())

    def note(self, day: str, notes: Mapping[str, Built]) -> None:
        """Replaces the notes of a day."""
        self.known[day] = dict(notes)
        files = write_notes(self.lake, day, notes)
        old = frozenset(file.path for file in self.lake.head().of(BUILDS, days=[day]))
        self.lake.publish(Change("build", add=files, remove=old))

    def build(self, day: str, queues: Mapping[str, str]) -> None:
        """Writes the notes of built queues, each with what it hands on, as the builder does."""
        ledger, fresh = self.look(), fresh_days(self.lake.head())
        notes = ledger.of(day)
        for queue, handed in queues.items():
            basis = ledger.basis(queue, day, fresh.get(queue, ()))
            notes[queue] = Built(basis, 1, "" if basis.last else handed)
        self.note(day, notes)

    def ingest(self, day: str, queue: str) -> None:
        """New bronze."""
        number = (date.fromisoformat(day) - _EPOCH).days
        row = {"day": number, "queue": queue, "kind": "entry", "at_ms": number * 86_400_000}
        made = write_rows(self.lake, [rows_of([row])])
        self.lake.publish(Change("ingest", add=[one.file for one in made]))

    def settle(self) -> None:
        """Takes all new bronze."""
        files = fresh_files(self.lake.head())
        gone = frozenset(file.path for file in files)
        self.lake.publish(Change("settle", add=[file.settled() for file in files], remove=gone))

    def expected(self) -> dict[str, dict[str, bool]]:
        """What must be built, by comparing every note with the one before it."""
        fresh = fresh_days(self.lake.head())
        found: dict[str, dict[str, bool]] = {}
        for queue in QUEUES:
            noted = {day: notes[queue] for day, notes in sorted(self.known.items()) if queue in notes}
            new = fresh.get(queue, set())
            for day in sorted({*noted, *new}):
                was = noted.get(day)
                before = max((one for one in noted if one < day), default="")
                carried = noted[before].handed if before else ""
                last = day == max({*noted, *new})
                newest = max((one for one in new if one < day), default="")
                exact = Basis(before, carried, last)
                if was is not None and not was.stale and was.basis == exact and day not in new:
                    continue
                basis = Basis(newest, "", last) if newest > before else exact
                grows = (
                    was is not None
                    and not was.stale
                    and was.basis.last
                    and msgspec.structs.replace(basis, last=True) == was.basis
                )
                found.setdefault(day, {})[queue] = not grows
        return found


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(tmp_path / "lake")


@pytest.mark.parametrize("seed", range(6))
def test_ledger_follows_any_history_of_notes(book: Book, seed: int) -> None:
    chance = random.Random(seed)

    def some() -> dict[str, str]:
        return {queue: chance.choice(["", "x", "y"]) for queue in QUEUES if chance.random() < 0.6}

    for _ in range(40):
        day = day_at(chance.randrange(6))
        kind = chance.random()
        if kind < 0.5:
            book.build(day, some())
        elif kind < 0.6:  # an erasure leaves nothing of a queue
            notes = book.look().of(day)
            notes.pop(chance.choice(QUEUES), None)
            book.note(day, notes)
        elif kind < 0.7:
            notes = book.look().of(day)
            book.note(
                day, {queue: msgspec.structs.replace(built, stale=True) for queue, built in notes.items()}
            )
        elif kind < 0.9:
            book.ingest(day, chance.choice(QUEUES))
        else:
            book.settle()
        if chance.random() < 0.7:  # else the ledger follows several changes at once
            assert book.look().stale() == book.expected()
    read_anew = Ledger(book.lake).look(book.lake.head())
    assert book.look().stale() == read_anew.stale() == book.expected()
    for queue in QUEUES:
        for number in range(6):
            actual = book.ledger.basis(queue, day_at(number), ())
            assert actual == read_anew.basis(queue, day_at(number), ())


def history(book: Book, days: int) -> None:
    """Builds days in turn, each of which ends with open jobs."""
    for number in range(days):
        if number:
            # What was the last day is built once more, and hands its open jobs on.
            book.ingest(day_at(number), "a")
            book.build(day_at(number - 1), {"a": f"open-{number - 1}"})
        book.build(day_at(number), {"a": ""})
        book.settle()


def test_old_notes_are_not_read_again(book: Book) -> None:
    history(book, 80)
    assert book.look().stale() == {}
    for file in book.lake.head().of(BUILDS)[:-2]:
        Path(book.lake.place(file)).unlink()
    book.ingest(day_at(79), "a")
    assert book.look().stale() == {day_at(79): {"a": False}}
    book.build(day_at(79), {"a": ""})
    book.settle()
    book.ingest(day_at(80), "a")
    assert book.look().stale() == {day_at(79): {"a": False}, day_at(80): {"a": True}}
    book.build(day_at(79), {"a": "open"})
    book.build(day_at(80), {"a": ""})
    book.settle()
    assert book.look().stale() == {}
    assert book.ledger.basis("a", day_at(81), [day_at(81)]) == Basis(day_at(80), "", True)


def test_notes_that_an_erasure_deletes_meanwhile_are_a_conflict(book: Book) -> None:
    history(book, 3)
    (first, *_) = book.lake.head().of(BUILDS)
    Path(book.lake.place(first)).unlink()
    with pytest.raises(LakeConflict, match="by an erasure"):
        without_dropped(book.lake.head(), day_at(2))


def test_notes_of_dropped_days_go_but_the_last_of_each_queue(book: Book) -> None:
    history(book, 6)
    book.build(day_at(1), {"quiet": ""})
    assert book.look().stale() == {}
    first = day_at(4)
    files, gone = without_dropped(book.lake.head(), first)
    marks: dict[str, Any] = {FIRST_DAY: first}
    book.lake.publish(Change("retain", add=files, remove=frozenset(gone), marks=marks))
    kept = {day: set(Ledger(book.lake).look(book.lake.head()).of(day)) for day in map(day_at, range(6))}
    assert kept == {
        **{day_at(number): set() for number in (0, 2)},
        **{day_at(number): {"a"} for number in (3, 4, 5)},
        day_at(1): {"quiet"},
    }
    for ledger in (book.look(), Ledger(book.lake).look(book.lake.head())):
        assert ledger.stale() == {}
    assert without_dropped(book.lake.head(), first) == ([], set())
    # A queue of a dropped day goes on from its note.
    book.ingest(day_at(7), "quiet")
    for ledger in (book.look(), Ledger(book.lake).look(book.lake.head())):
        assert ledger.stale() == {day_at(1): {"quiet": False}, day_at(7): {"quiet": True}}
