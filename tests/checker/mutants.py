"""Broken builds that the checker must catch: ``python -m tests.checker.mutants`` (`make checker-mutants`).

`mutants.toml` lists them. Each is a copy of the source with one change, which breaks one invariant:

    invariant  the invariant of `invariants.py` that must be reported as broken
    faults     the kinds of faults that the run needs, repeated over it, as ``kind`` or ``kind:seconds``
    only       the queue and kind of jobs that it needs, as ``ours/slow``: other jobs leave it to luck
    lake       whether the run needs the pipeline
    file       the changed file, below the package
    snippet    the text that occurs in it once, and what it `becomes`
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.checker.nemesis import Fault, dump
from tests.checker.report import broken_in
from tests.mutants.catalogue import PACKAGE, SOURCE, Mutant, StaleMutant
from tests.mutants.page import ROOT
from tests.mutants.runner import Bench

CATALOGUE = Path(__file__).with_name("mutants.toml")
#: Seconds of a run, and seconds to wait for progress after it: a lost job costs all of them.
SECONDS, PATIENCE = 9.0, 20.0
LIMIT = 600.0
#: How long a stopped worker stays so: longer than its lease and a stalled check.
STOPPED = 4.5


class NoVerdict(Exception):
    """A run of the checker ended before it could judge, for example because Spark could not start in time."""


@dataclass(frozen=True)
class Broken:
    """A broken build."""

    name: str
    invariant: str
    faults: tuple[str, ...]
    only: str
    file: str
    snippet: str
    becomes: str
    lake: bool = False

    def changed(self, source: Path = SOURCE) -> str:
        """Returns the text of the changed file.

        Raises:
            StaleMutant: The snippet does not occur exactly once.
        """
        return Mutant(self.name, "", self.file, self.snippet, self.becomes).mutated(source)

    def schedule(self) -> list[Fault]:
        """Its kinds of faults, one after another, over the whole run."""
        made: list[Fault] = []
        at = 1.0
        while self.faults and at < SECONDS - 1:
            kind, _, seconds = self.faults[len(made) % len(self.faults)].partition(":")
            target = f"oxcart-{len(made) % 2 + 1}" if kind in ("kill", "stop") else "ours"
            lasts = float(seconds or (STOPPED if kind == "stop" else 0))
            made.append(Fault(at, kind, target, lasts, 3 if kind == "drop" else 0))
            at += 1.5 + lasts
        return made


def broken_builds() -> list[Broken]:
    """Returns all of them."""
    found = tomllib.loads(CATALOGUE.read_text("utf-8"))["mutant"]
    return [Broken(**{**fields, "faults": tuple(fields["faults"])}) for fields in found]


def invariants_broken_by(one: Broken, seed: int = 1) -> tuple[set[str], str]:
    """Runs the checker against a broken build; returns the invariants that it reports, and its output.

    Raises:
        NoVerdict: The run ended before the checker could judge.
    """
    changed = one.changed()
    with Bench()._copy() as copy:
        (copy / PACKAGE / one.file).write_text(changed, "utf-8")
        command = [sys.executable, "-m", "tests.checker", "--seed", str(seed), "--seconds", str(SECONDS)]
        command += ["--rounds", "1", "--peers", "", "--patience", str(PATIENCE), "--no-shrink"]
        command += ["--only", one.only, "--lake", "all" if one.lake else "none"]
        done = subprocess.run(
            [*command, "--faults", dump(one.schedule())],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(copy), str(ROOT)])},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    output = done.stdout + done.stderr
    found = broken_in(done.stdout)
    if bool(found) != (done.returncode == 1):
        raise NoVerdict(f"the checker gave no verdict, exit code {done.returncode}: {output[-1000:]}")
    return found, output


def main(arguments: Sequence[str] | None = None) -> int:
    """Tries all out; exits with 1 if one is not caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.checker.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="those whose name or invariant contains this")
    parser.add_argument("--tries", type=int, default=3, help="rounds until it counts as missed (default: 3)")
    parser.add_argument("--verbose", action="store_true", help="show the output of the checker")
    options = parser.parse_args(arguments)
    missed = 0
    for one in broken_builds():
        if options.only not in one.name and options.only not in one.invariant:
            continue
        caught = False
        for seed in range(1, options.tries + 1):
            try:
                found, output = invariants_broken_by(one, seed)
            except StaleMutant as error:
                print(f"STALE   {error}")
                break
            except NoVerdict as error:
                print(f"        {one.name:<40} round {seed}: {error}", flush=True)
                continue
            if options.verbose:
                print(output)
            if caught := one.invariant in found:
                also = sorted(found - {one.invariant})
                print(f"caught  {one.name:<40} by {one.invariant!r} in round {seed}; also {json.dumps(also)}")
                break
            print(f"        {one.name:<40} was not caught in round {seed}: {sorted(found)}", flush=True)
        missed += not caught
    print(f"{missed} broken builds missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
