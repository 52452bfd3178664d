"""``python -m tools.release``: checks a release in ``build/release``; exit code 1 if something is wrong."""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path

from tools.release import artifacts, licences, supply
from tools.release.artifacts import ROOT
from tools.release.environments import SUPPORTED, TEST_NEEDS, TRIED, CheckFailed, Environment, interpreter

FOLDER = ROOT / "build" / "release"
TOOLS = ROOT / "build" / "release-tools" / "bin"


def main(arguments: list[str]) -> int:
    """Runs the checks and prints a line for each; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="only the tests of the model and of oxcart.testing"
    )
    parser.add_argument("--python", action="append", help="only this version; repeatable")
    parser.add_argument("--processes", type=int, default=2, help="processes that run the tests (default: 2)")
    parser.add_argument("--strict", action="store_true", help="fail if a package cannot be asked about")
    parser.add_argument("--offline", action="store_true", help="pass although no advisory can be had")
    parser.add_argument("--list", action="store_true", help="only list the Pythons of this machine")
    given = parser.parse_args(arguments)
    if given.list:
        for python in (*SUPPORTED, *TRIED):
            if (path := interpreter(python)) is not None:
                print(python, path)
            else:
                print(f"Python {python}: not on this machine", file=sys.stderr)
        return 0
    wheel, sdist = artifacts.build(FOLDER / "dist")
    found = artifacts.problems(wheel, sdist)
    print(f"built {wheel.name} and {sdist.name}")
    newest: Environment | None = None
    for python in given.python or (*SUPPORTED, *TRIED):
        path = interpreter(python)
        if path is None:
            print(f"Python {python}: not on this machine, not tried")
            found += [f"Python {python} is supported and not here"] if python in SUPPORTED else []
            continue
        try:
            newest = check_python(python, path, wheel, quick=given.quick, processes=given.processes)
        except CheckFailed as error:
            print(error)
            found.append(str(error).partition("\n")[0])
    if newest is not None:
        packages = newest.packages()
        wrong = licences.problems(packages)
        found += wrong
        print(f"licences of {len(packages)} packages: {'all free' if not wrong else len(wrong)}")
        parts = supply.write_sbom(TOOLS, newest.bin / "python", FOLDER / "sbom.json")
        print(f"SBOM of {parts} parts: {(FOLDER / 'sbom.json').relative_to(ROOT)}")
        # What the SBOM lists: the newest releases that users get, which the lock may lag behind.
        (FOLDER / "sbom.txt").write_text(supply.pins_of(one for one in packages if one.name != "oxcart"))
        found += audit(FOLDER / "sbom.txt", strict=given.strict, offline=given.offline)
    found += audit(ROOT / "requirements.lock", strict=given.strict, offline=given.offline)
    for one in found:
        print(f"PROBLEM {one}", file=sys.stderr)
    return 1 if found else 0


def audit(pinned: Path, *, strict: bool, offline: bool) -> list[str]:
    """Prints what is known of advisories of pinned packages; returns the problems."""
    try:
        known, unknown = supply.advisories(TOOLS, pinned)
    except supply.NoAnswerError as error:
        print(error)
        return [] if offline else [str(error)]
    unasked = f" ({', '.join(unknown[:12])}{', …' if len(unknown) > 12 else ''})" if unknown else ""
    print(
        f"advisories of {pinned.name}: {len(known)}; "
        f"{len(unknown)} packages could not be asked about{unasked}"
    )
    return known + ([f"{len(unknown)} packages could not be audited"] if unknown and strict else [])


def check_python(python: str, path: Path, wheel: Path, *, quick: bool, processes: int) -> Environment:
    """Tries the wheel in two clean environments of a Python: bare, and with all extras.

    Raises:
        CheckFailed: Something does not work.
    """
    bare = Environment(python, FOLDER / f"bare-{python}", TOOLS / "uv")
    bare.create(path)
    bare.install(str(wheel))
    bare.try_quickstart(FOLDER / f"quickstart-{python}")
    print(f"Python {python}: {len(bare.packages())} packages, quickstart and doctor work")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    full = Environment(python, FOLDER / f"extras-{python}", TOOLS / "uv")
    full.create(path)
    full.install(f"{wheel}[{','.join(sorted(extras))}]")
    full.try_quickstart(FOLDER / f"quickstart-{python}")
    shipped = len(full.packages())
    tests = Environment(python, FOLDER / f"tests-{python}", TOOLS / "uv")
    tests.create(path)
    tests.install(f"{wheel}[{','.join(sorted(extras))}]", *TEST_NEEDS)
    ended = tests.try_tests(FOLDER / f"suite-{python}", quick=quick, processes=processes)
    print(f"Python {python} with all extras: {shipped} packages, {ended}")
    return full


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
