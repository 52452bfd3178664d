"""Each command whose exit code is evidence exits with 1 when its promise does not hold.

`make conformance-mutants` has its own in `tests/mutants` and `make mutants` in `tests/mutants/generated`.
`make fuzz` is pytest; `tests/fuzz` shows that its rounds notice an error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks import bench, gate, growth, instructions
from benchmarks.soak import __main__ as soak
from benchmarks.soak.verdict import Finding

from tests.checker import __main__ as checker
from tests.checker import mutants as checker_mutants
from tests.checker.invariants import Violation
from tests.checker.rounds import Result
from tests.explorer import __main__ as explorer
from tests.explorer.explore import Found

Patch = pytest.MonkeyPatch


def _checker(patch: Patch, holds: bool, folder: Path) -> Callable[[], int]:
    async def run(*given: Any) -> Result:
        broken = [] if holds else [Violation("lease", "broken")]
        return Result(1, (), 1.0, [], violations=broken)

    patch.setattr(checker, "run", run)
    patch.setattr(sys, "argv", ["checker", "--rounds", "1", "--seed", "1", "--no-shrink", "--peers", ""])
    return checker.main


def _checker_mutants(patch: Patch, holds: bool, folder: Path) -> Callable[[], int]:
    def judged(one: checker_mutants.Broken, seed: int) -> tuple[set[str], str]:
        if seed == 1:
            raise checker_mutants.NoVerdict("Spark could not start")
        return ({one.invariant} if holds else set()), ""

    patch.setattr(checker_mutants, "invariants_broken_by", judged)
    return lambda: checker_mutants.main([])


def _model(patch: Patch, holds: bool, folder: Path) -> Callable[[], int]:
    patch.setattr(explorer, "explore", lambda *given: Found(1, 1, 1, () if holds else ("two ends",)))
    patch.setattr(sys, "argv", ["explorer", "--paths", "0"])
    return explorer.main


def _soak(patch: Patch, holds: bool, folder: Path) -> Callable[[], int]:
    async def found(arguments: Any) -> list[Finding]:
        return [Finding("keys", "1", "0", holds)]

    patch.setattr(soak, "soak", found)
    patch.setattr(sys, "argv", ["soak"])
    return soak.main


def _instructions(patch: Patch, holds: bool, folder: Path) -> Callable[[], int]:
    """The commit before took 1 000 instructions a job; 1.5 % more is over the bound."""

    def count(kind: str, jobs: int, source: Path) -> int:
        return round(jobs * (1_000 if source == folder or holds else 1_015))

    patch.setattr(instructions, "count_server", count)
    patch.setattr(instructions, "count_client", lambda kind, jobs, source: 1_000 * jobs)
    patch.setattr(instructions, "checkout", lambda commit: folder)
    patch.setattr(instructions, "ROOT", folder / "root")
    (folder / "root").mkdir()
    patch.setattr(sys, "argv", ["instructions", "--base", "HEAD", "--kinds", "add", "--check"])
    return instructions.main


def _instructions_bars(patch: Patch, holds: bool, folder: Path) -> Callable[[], int]:
    """The bare bound takes 1 000 instructions a job; 1.4 times as many are over the bar."""
    patch.setattr(instructions, "count_server", lambda kind, jobs, source: (1_000 if holds else 1_400) * jobs)
    patch.setattr(instructions, "count_client", lambda kind, jobs, source: 1_000 * jobs)
    patch.setattr(instructions, "count_peer", lambda name: lambda kind, jobs, source: 1_000 * jobs)
    patch.setattr(instructions, "slopes", lambda count, *given: {"process": count("process", 1, folder)})
    patch.setattr(instructions, "ROOT", folder)
    patch.setattr(sys, "argv", ["instructions", "--systems", "oxcart,bound", "--kinds", "process", "--check"])
    return instructions.main


def _gate(patch: Patch, holds: bool, folder: Path) -> Callable[[], int]:
    async def measure() -> gate.Figures:
        return {"add_many": 1_000.0, "process": 1_000.0 if holds else 1_030.0}

    patch.setattr(gate, "measure", measure)
    patch.setattr(gate, "BASELINE", folder / "gate.json")
    gate.BASELINE.write_text('{"add_many": 1000, "process": 1000}')
    return lambda: gate.main([])


def _growth(patch: Patch, holds: bool, folder: Path) -> Callable[[], int]:
    async def measure(question: growth.Question, size: int) -> dict[str, float]:
        cost = 100.0 if holds else 100.0 + size
        return {"add": cost, "process": cost}

    patch.setattr(growth, "measure", measure)
    patch.setattr(growth, "OUTPUT", folder / "growth.json")
    patch.setattr(sys, "argv", ["growth", "--only", "queued", "--most", "100", "--check"])
    return growth.main


def _bench(patch: Patch, holds: bool, folder: Path) -> Callable[[], int]:
    async def run(*given: Any) -> list[Any]:
        return []

    patch.setattr(bench, "run", run)
    patch.setattr(bench, "print_floors", lambda *given: holds)
    patch.setattr(sys, "argv", ["bench", "--check", "--no-field", "--output", str(folder / "bench.json")])
    return bench.main


COMMANDS = (
    _checker,
    _checker_mutants,
    _model,
    _soak,
    _instructions,
    _instructions_bars,
    _gate,
    _growth,
    _bench,
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: one.__name__.strip("_"))
@pytest.mark.parametrize("holds", [True, False], ids=["holds", "broken"])
def test_a_broken_promise_is_the_exit_code(
    command: Any, holds: bool, monkeypatch: Patch, tmp_path: Path
) -> None:
    main = command(monkeypatch, holds, tmp_path)
    assert main() == (0 if holds else 1)
