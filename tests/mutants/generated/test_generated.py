"""Generated mutants: a survivor fails the command, unless it is explained, and explanations are kept true."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mutants.generated import __main__ as command
from tests.mutants.generated import rooms as listed
from tests.mutants.generated.__main__ import Tally, main, try_out
from tests.mutants.generated.operators import _difference, _dumped
from tests.mutants.generated.rooms import Change, Explained, Room
from tests.mutants.runner import Bench

PRODUCT = "def most(number: int) -> int:\n    return number if number > 0 else 0\n"
CHECKS = "from oxcart import most\n\ndef test_most():\n    assert (most(2), most(-2)) == (2, 0)\n"
#: No test of `CHECKS` can tell this one from the product: 0 is 0 either way.
EQUAL = Change(
    "Gt_GtE", 2, "    return number if number > 0 else 0", "    return number if number >= 0 else 0"
)
WRONG = Change("Gt_Lt", 2, "    return number if number > 0 else 0", "    return number if number < 0 else 0")
UNREADABLE = Change("Gt_Lt", 2, "    return number if number > 0 else 0", "    return nubmer")
WHY = Explained("__init__", EQUAL.before.strip(), EQUAL.after.strip(), "0 is 0 either way")


@pytest.fixture
def room(tmp_path: Path) -> Room:
    package = tmp_path / "src" / "oxcart"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(PRODUCT)
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "test_most.py").write_text(CHECKS)
    return Room("__init__", ("checks/test_most.py",), tmp_path / "src")


def tally(
    room: Room, changes: Sequence[Change], reasons: Sequence[Explained] = (), limit: float = 60
) -> Tally:
    bench = Bench(room.source, limit=60, root=room.source.parent)
    return try_out(room, changes, bench, limit, reasons, say=lambda line: None)


def test_a_survivor_is_found_and_others_are_killed(room: Room) -> None:
    found = tally(room, [EQUAL, WRONG, UNREADABLE])
    assert (found.survived, found.killed, found.holds) == ([EQUAL], 2, False)


def test_an_explained_survivor_holds_until_a_test_kills_it(room: Room) -> None:
    assert tally(room, [EQUAL, WRONG], [WHY]).holds
    found = tally(room, [WRONG], [WHY])
    assert "take its explanation out" in found.wrong[0]
    assert not found.holds


def test_a_mutant_without_time_is_left_and_says_nothing_of_explanations(room: Room) -> None:
    found = tally(room, [EQUAL, WRONG], [WHY], limit=-1)
    assert (found.left, found.killed, found.wrong) == (2, 0, [])


def test_tests_that_fail_without_a_mutant_prove_nothing(room: Room) -> None:
    (room.source / "oxcart" / "__init__.py").write_text(PRODUCT.replace("> 0", "< 0"))
    assert not tally(room, [WRONG]).holds


def test_the_command_exits_by_the_tally(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [Tally(killed=1), Tally(killed=1, survived=[EQUAL])]
    monkeypatch.setattr(command, "generate", lambda room: [EQUAL, WRONG])
    monkeypatch.setattr(command, "try_out", lambda *given: made.pop(0))
    assert main(["model/backoff"]) == 0
    assert main(["model/backoff"]) == 1
    assert main(["no/such/room"]) == 2


def test_every_room_and_every_explanation_fits_the_source() -> None:
    assert listed.stale() == []


def test_an_explanation_of_a_line_that_is_gone_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Explained("model/backoff", "no such line", "x", "")
    monkeypatch.setattr(listed, "explained", lambda: (gone,))
    assert ["no such line" in line for line in listed.stale()] == [True]


def test_changes_of_annotations_are_no_mutants() -> None:
    assert _dumped("def f(a: int | None) -> int | str: ...") == _dumped(
        "def f(a: int & None) -> int & str: ..."
    )
    named = "def f(a, *, b, c=1): ..."
    assert _dumped(named) == _dumped(named.replace("*", "/"))
    assert _dumped(named) != _dumped(named.replace("c=1", "c=2"))
    assert _dumped("a: int | str = 1") == _dumped("a: int & str = 1")
    assert _dumped("a: int = 1") != _dumped("a: int = 2")


def test_a_change_is_the_lines_that_differ() -> None:
    text = "a = 1\nb = (2 +\n  3)\nc = 4\n"
    found = _difference(text, "a = 1\nb = (2 -\n  3)\nc = 4\n")
    assert found == {"line": 2, "before": "b = (2 +", "after": "b = (2 -"}
    assert Change("x", **found).applied(text) == "a = 1\nb = (2 -\n  3)\nc = 4\n"
    removed = _difference("@a\n@b\ndef f(): ...\n", "@b\ndef f(): ...\n")
    assert Change("x", **removed).applied("@a\n@b\ndef f(): ...\n") == "@b\ndef f(): ...\n"
