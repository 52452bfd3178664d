"""Linters of deployments: installed once from `linters.lock` into an environment of their own."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.fast import refuse
from tests.nodes import locked

ROOT = Path(__file__).parents[2]
_LOCK = Path(__file__).parent / "linters.lock"
_FOLDER = ROOT / "build" / "linters"


@cache
def _installed() -> bool:
    refuse("linters, which are fetched")
    mark = _FOLDER / ".installed"
    with locked("linters"):
        if mark.exists() and mark.read_text() == _LOCK.read_text():
            return True
        subprocess.run([sys.executable, "-m", "venv", str(_FOLDER)], check=True)
        pip = [str(_FOLDER / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*pip, "--require-hashes", "-r", str(_LOCK)], capture_output=True, check=False)
        if done.returncode == 0:
            mark.write_text(_LOCK.read_text())
        return done.returncode == 0


def lint(program: str, *arguments: str | Path) -> str:
    """Runs a linter, which must find nothing; returns its output. Skips the test if it cannot be had."""
    if not _installed():
        pytest.skip(f"{program} cannot be installed here")
    command = [str(_FOLDER / "bin" / program), *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
