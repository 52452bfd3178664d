"""Applies each mutant to a copy of the source and requires that the tests of its row fail.

`Bench.try_out` gives a mutant one of the verdicts of `Verdict`. Only `CAUGHT` is good: a test ran and failed
on what it asserts. A test that cannot be imported or collected, or whose fixture fails, proves nothing.
"""

from __future__ import annotations

import contextlib
import enum
import fnmatch
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutants import witness
from tests.mutants.catalogue import PACKAGE, SOURCE, Mutant, StaleMutant
from tests.mutants.page import ROOT, Row

#: Seconds that the tests of one mutant may take.
LIMIT = 600.0
#: Processes that run tests at a time.
PARALLEL = 2

#: Errors by which a test reports an unexpected outcome. Typed errors of the product are included: they refuse
#: what the row allows.
_ASSERTIONS = (
    "builtins.AssertionError",
    "builtins.Failed",
    "builtins.TimeoutError",
    "oxcart.model.errors.OxcartError",
)
#: Traces of a fault that breaks the file itself, wherever a test prints them.
_BROKEN = (
    "ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "NameError",
    "Error compiling script", "Script attempted to access nonexistent global",
)  # fmt: skip
_HUNG = "from pytest-timeout"


class Verdict(enum.StrEnum):
    """The result of a mutant."""

    CAUGHT = "caught"
    SURVIVED = "SURVIVED"
    BROKEN = "BROKEN"
    SLOW = "TOO SLOW"
    STALE = "STALE"
    UNSOUND = "UNSOUND"


@dataclass(frozen=True, slots=True)
class Result:
    """The verdict of one mutant, with the reason and the seconds it took."""

    mutant: Mutant
    verdict: Verdict
    reason: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """One run of pytest: its record (None without one), its output, and whether its time ran out."""

    record: dict[str, Any] | None
    output: str
    late: bool


def chosen(found: Sequence[Mutant], pattern: str | None) -> list[Mutant]:
    """Returns the mutants whose name, row or file fits a pattern: a part of it, or with ``*``."""
    if not pattern:
        return list(found)
    wild = f"*{pattern}*"
    return [
        one for one in found if any(fnmatch.fnmatch(text, wild) for text in (one.name, one.row, one.file))
    ]


class Bench:
    """Runs tests against copies of the source.

    Args:
        source: The folder to copy, with the package in it.
        limit: Seconds that the tests of one mutant may take.
        root: The folder in which pytest runs.
    """

    def __init__(self, source: Path = SOURCE, limit: float = LIMIT, root: Path = ROOT) -> None:
        self._source = source
        self._limit = limit
        self._root = root

    def failing_unmutated(self, node_ids: Sequence[str], parallel: int = PARALLEL) -> dict[str, str]:
        """Runs tests against an unchanged copy.

        Returns:
            The reason for each of the tests that did not pass.
        """
        by_file: dict[str, list[str]] = {}
        for node in dict.fromkeys(node_ids):
            by_file.setdefault(node.partition("::")[0], []).append(node)
        with self._copy() as copy, ThreadPoolExecutor(parallel) as pool:
            runs = pool.map(lambda nodes: (nodes, self._pytest(copy, nodes, stop=False)), by_file.values())
            return {node: reason for nodes, run in runs for node, reason in _failing(nodes, run)}

    def try_out(self, mutant: Mutant, known: tuple[Row, ...]) -> Result:
        """Runs the tests of a mutant's row against a copy that has the fault."""
        start = time.monotonic()
        try:
            node_ids = mutant.node_ids(mutant.find_row(known))
            changed = mutant.mutated(self._source)
        except StaleMutant as error:
            return Result(mutant, Verdict.STALE, str(error))
        with self._copy() as copy:
            (copy / PACKAGE / mutant.file).write_text(changed, "utf-8")
            run = self._pytest(copy, node_ids, stop=True)
        verdict, reason = _judge(run, self._limit)
        return Result(mutant, verdict, reason, time.monotonic() - start)

    def survives(self, package: str, file: str, changed: str, node_ids: Sequence[str]) -> tuple[Verdict, str]:
        """Runs tests against a copy in which a file has another text; returns the verdict and its reason."""
        with self._copy() as copy:
            (copy / package / file).write_text(changed, "utf-8")
            return _judge(self._pytest(copy, node_ids, stop=True), self._limit)

    @contextlib.contextmanager
    def _copy(self) -> Iterator[Path]:
        """A copy of the source that lasts as long as the block.

        Compiled files go with it and stay valid, because copies keep the times of their files.
        """
        with tempfile.TemporaryDirectory(prefix="oxcart-mutant-", ignore_cleanup_errors=True) as folder:
            copy = Path(folder) / "src"
            shutil.copytree(self._source, copy)
            yield copy

    def _pytest(self, copy: Path, node_ids: Iterable[str], *, stop: bool) -> Run:
        record = copy.parent / f"record-{time.monotonic_ns()}.json"
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(copy), str(ROOT)]),
            witness.SOURCE_VARIABLE: str(copy),
            witness.RECORD_VARIABLE: str(record),
            # Random steps: the same in every run, and without shrinking a failure.
            "OXCART_STEPS_SEED": "1",
            "OXCART_STEPS_RAW": "1",
        }
        # The cache would write into the repository.
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "tests.mutants.witness",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:oxcart",  # the installed plugin imports the package that the mutant replaces
        ]
        process = subprocess.Popen(
            [*command, *(["-x"] if stop else []), *node_ids],
            cwd=self._root,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        late = False
        try:
            output, _ = process.communicate(timeout=self._limit if stop else None)
        except subprocess.TimeoutExpired:
            late = True
            os.killpg(process.pid, signal.SIGKILL)  # a session of its own: only what this run started
            output, _ = process.communicate()
        made = json.loads(record.read_text()) if record.exists() else None
        return Run(made, output, late)


def run(
    bench: Bench,
    wanted: Sequence[Mutant],
    known: tuple[Row, ...],
    parallel: int = PARALLEL,
    say: Callable[[str], object] = print,
) -> list[Result]:
    """Tries out mutants after their tests have passed without them; reports each result as it comes."""
    needed: list[str] = []
    for mutant in wanted:
        with contextlib.suppress(StaleMutant):  # `try_out` reports it
            needed += mutant.node_ids(mutant.find_row(known))
    say(f"{len(set(needed))} tests without a mutant …")
    unsound = bench.failing_unmutated(needed, parallel)
    for node, reason in unsound.items():
        say(f"{Verdict.UNSOUND}: {node} does not pass without a mutant: {reason}")

    def one(mutant: Mutant) -> Result:
        with contextlib.suppress(StaleMutant):
            bad = [node for node in mutant.node_ids(mutant.find_row(known)) if node in unsound]
            if bad:
                return Result(mutant, Verdict.UNSOUND, f"{bad[0]} does not pass without the mutant")
        result = bench.try_out(mutant, known)
        say(f"{result.verdict:<9} {result.seconds:6.1f} s  {mutant.name}  ({result.reason})")
        return result

    with ThreadPoolExecutor(parallel) as pool:
        return list(pool.map(one, wanted))


def table(results: Sequence[Result], known: tuple[Row, ...]) -> str:
    """Returns the results as a table, in the order of the page."""
    lines = []
    for row in known:
        for result in results:
            if row.rule.startswith(result.mutant.row):
                lines.append(f"{result.verdict:<9} {result.mutant.name:<44} {row.rule[:70]}")
    good = sum(result.verdict is Verdict.CAUGHT for result in results)
    return "\n".join([*lines, f"{good} of {len(results)} mutants caught"])


def _failing(nodes: Sequence[str], run: Run) -> Iterator[tuple[str, str]]:
    """The tests of an unmutated run that did not pass, with the reason."""
    tests = [] if run.record is None else run.record["tests"]
    for node in nodes:
        own = [one for one in tests if _is_of(one["test"], node)]
        bad = next((one for one in own if one["outcome"] == "failed"), None)
        if bad is not None:
            yield node, f"{bad['test']}: {bad['text'].strip().splitlines()[-1:]}"
        elif not any(one["outcome"] == "passed" for one in own):
            yield node, f"it did not run: {run.output[-2000:]}"


def _is_of(test: str, node: str) -> bool:
    """Whether a test is a node, or in it."""
    return test == node or test.startswith((f"{node}::", f"{node}["))


def _judge(run: Run, limit: float) -> tuple[Verdict, str]:
    if run.late:
        return Verdict.SLOW, f"no verdict within {limit:g} s"
    if run.record is None:
        return Verdict.BROKEN, f"pytest did not start: {run.output[-2000:]}"
    if run.record["collection"]:
        return Verdict.BROKEN, f"a test could not be collected: {run.record['collection'][0][-2000:]}"
    failed = [one for one in run.record["tests"] if one["outcome"] == "failed"]
    if not failed:
        passed = sum(one["outcome"] == "passed" for one in run.record["tests"])
        return Verdict.SURVIVED, f"{passed} tests passed"
    for one in failed:
        if one["phase"] == "call" and _asserts(one):
            return Verdict.CAUGHT, one["test"]
    return Verdict.BROKEN, f"no assertion failed: {failed[0]['test']}\n{failed[0]['text'][-2000:]}"


def _asserts(one: dict[str, Any]) -> bool:
    text = str(one["text"])
    return (
        any(kind in _ASSERTIONS for kind in one["errors"])
        and _HUNG not in text
        and not any(f"{sign}:" in text or (" " in sign and sign in text) for sign in _BROKEN)
    )
