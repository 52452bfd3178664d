"""What a release consists of: its bill of materials, and known advisories of its parts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any


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


def advisories(tools: Path, lock: Path) -> tuple[list[str], list[str]]:
    """Asks PyPI for advisories of pinned packages.

    Args:
        tools: The folder of the tools' programs.
        lock: The lock file.

    Returns:
        The advisories, and the packages that could not be asked about.
    """
    done = subprocess.run(
        [
            *(tools / "pip-audit", "--requirement", lock, "--disable-pip", "--require-hashes"),
            *("--format", "json", "--progress-spinner", "off"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        return [], [f"pip-audit: {(done.stderr.strip().splitlines() or ['no answer'])[-1]}"]
    return read(answer)


def read(answer: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Reads the answer of pip-audit: advisories, and packages without an answer."""
    packages = answer["dependencies"]
    unknown = [str(one["name"]) for one in packages if "skip_reason" in one]
    found = [
        f"{one['name']} {one['version']}: {advisory['id']}, "
        f"fixed in {', '.join(advisory['fix_versions']) or 'none'}"
        for one in packages
        for advisory in one.get("vulns", ())
    ]
    return found, unknown
