"""What a release consists of: its bill of materials, and known advisories of its parts."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

from pip._internal.models.index import PyPI

#: PyPI's description of a package, with the advisories of its newest release.
NEWEST = f"{PyPI.pypi_url}/{{}}/json"


def write_sbom(tools: Path, python: Path, target: Path) -> int:
    """Writes the bill of materials of an environment (CycloneDX, JSON); returns the number of its parts.

    Args:
        tools: The folder of the tools' programs.
        python: The interpreter of the environment.
        target: The file.
    """
    subprocess.run(
        [
            *(tools / "cyclonedx-py", "environment", "--output-reproducible", "--output-format", "JSON"),
            *("--output-file", target, python),
        ],
        check=True,
        capture_output=True,
    )
    made: dict[str, Any] = json.loads(target.read_text())
    return len(made["components"])


class NoAnswerError(Exception):
    """pip-audit had no answer at all."""


def pins_of(packages: Iterable[Distribution]) -> str:
    """Returns the packages of an environment as requirements, for `advisories`."""
    return "".join(sorted(f"{one.metadata['Name'].lower()}=={one.version}\n" for one in packages))


def advisories(tools: Path, pinned: Path) -> tuple[list[str], list[str]]:
    """Asks PyPI for advisories of pinned packages.

    Args:
        tools: The folder of the tools' programs.
        pinned: Requirements with exact versions, such as a lock file.

    Returns:
        The advisories, and the packages that could not be asked about.

    Raises:
        NoAnswerError: pip-audit did not answer.
    """
    hashed = ["--require-hashes"] if "--hash=" in pinned.read_text() else ["--no-deps"]
    done = subprocess.run(
        [
            *(tools / "pip-audit", "--requirement", pinned, "--disable-pip"),
            *hashed,
            *("--format", "json", "--progress-spinner", "off"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["nothing on its outputs"])[-1]
        raise NoAnswerError(f"pip-audit gave no answer for {pinned.name}: {last}") from None
    found, unknown = read(answer)
    pins = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", pinned.read_text(), re.MULTILINE))
    further, unknown = of_newest({name: pins[name] for name in unknown})
    return found + further, unknown


def read(answer: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Reads the answer of pip-audit: advisories, and packages without an answer."""
    packages = answer["dependencies"]
    unknown = [str(one["name"]) for one in packages if "skip_reason" in one]
    found = [
        _line(one["name"], one["version"], advisory["id"], advisory["fix_versions"])
        for one in packages
        for advisory in one.get("vulns", ())
    ]
    return found, unknown


def of_newest(
    pins: dict[str, str], ask: Callable[[Iterable[str]], Iterable[dict[str, Any] | None]] | None = None
) -> tuple[list[str], list[str]]:
    """Looks up packages that pip-audit got no answer for, as behind a mirror that knows no single releases.

    PyPI also lists the advisories of a package's newest release, which a fresh lock mostly has.

    Args:
        pins: Versions by package.
        ask: Returns PyPI's description of each package; None where there is none.

    Returns:
        The advisories, and the packages of which the lock has an older release, or PyPI no description.
    """
    found, unknown = [], []
    for (name, version), known in zip(pins.items(), (ask or _descriptions)(pins), strict=True):
        if known is None or known["info"]["version"] != version:
            unknown.append(name)
            continue
        found += [
            _line(name, version, one["id"], one.get("fixed_in", ()))
            for one in known["vulnerabilities"]
            if not one.get("withdrawn")
        ]
    return found, unknown


def _descriptions(names: Iterable[str]) -> Iterable[dict[str, Any] | None]:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(_description, names))


def _description(name: str) -> dict[str, Any] | None:
    try:
        with urllib.request.urlopen(NEWEST.format(name), timeout=30) as reply:
            made: dict[str, Any] = json.load(reply)
    except (OSError, ValueError):
        return None
    return made if {"info", "vulnerabilities"} <= made.keys() else None


def _line(name: str, version: str, advisory: str, fixed: Iterable[str]) -> str:
    return f"{name} {version}: {advisory}, fixed in {', '.join(fixed) or 'none'}"
