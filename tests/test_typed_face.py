"""The typed face for another type checker than mypy, which checks it with the rest of the code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import nodes
from tests.documented import ROOT

pytestmark = [
    pytest.mark.node,
    pytest.mark.slow,
    pytest.mark.skipif(nodes.node_missing() is not None, reason="pyright needs Node"),
]

FACE = Path(__file__).with_name("typed_face.py")


def check(folder: Path, face: str) -> list[dict[str, Any]]:
    """Returns what pyright reports of a module."""
    (folder / "face.py").write_text(face)
    settings = {
        "include": ["face.py"],
        "extraPaths": [str(ROOT / "src")],
        "pythonVersion": "3.11",
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [
        "node",
        str(nodes.pyright()),
        "-p",
        str(folder),
        "--pythonpath",
        sys.executable,
        "--outputjson",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    answer = json.loads(done.stdout)
    assert answer["summary"]["filesAnalyzed"] == 1, done.stdout
    found: list[dict[str, Any]] = answer["generalDiagnostics"]
    return found


def test_pyright_agrees_with_mypy_on_every_line(tmp_path: Path) -> None:
    assert check(tmp_path, FACE.read_text()) == []


def test_pyright_sees_each_wrong_call(tmp_path: Path) -> None:
    face = FACE.read_text()
    wrong = {number for number, line in enumerate(face.splitlines()) if "# type: ignore" in line}
    bare = "\n".join(line.partition("  # type: ignore")[0] for line in face.splitlines())
    assert {one["range"]["start"]["line"] for one in check(tmp_path, bare)} == wrong
