"""``make test-fast``: leaves out slow tests, and refuses Node, browsers, Java, clusters and Sentinels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import fast
from tests.browser import Browser
from tests.servers import Sentinels, ValkeyCluster

ROOT = Path(__file__).parents[1]

_PROBE = """
import os
import subprocess

import pytest


@pytest.mark.slow
def test_slow():
    raise AssertionError


@pytest.mark.node
def test_node():
    raise AssertionError


@pytest.mark.parametrize("program", ["/bin/java", "node", "npm", "/opt/spark/bin/spark-submit"])
def test_program(program):
    subprocess.Popen([program])


def test_plain():
    subprocess.run(["true"], check=True)
"""


def run(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", "--rootdir", str(folder), *words],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


def test_marked_tests_are_left_out_and_excluded_programs_refuse(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "from tests import fast\n"
        "from tests.fast import pytest_addoption, pytest_configure\n"
        "def pytest_collection_modifyitems(config, items):\n"
        "    fast.select(config, items)\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: x\n    node: x\n")
    (tmp_path / "test_probe.py").write_text(_PROBE)
    text = run(tmp_path, "--fast", ".")
    assert "4 failed, 1 passed, 2 deselected" in text, text
    assert text.count("NotFast: a test of `make test-fast` needs") >= 4


@pytest.mark.parametrize("needs", [Browser, ValkeyCluster, Sentinels])
def test_servers_beyond_one_valkey_are_refused(needs: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXCART_FAST_TESTS", "1")
    with pytest.raises(fast.NotFast):
        needs()


def test_the_selection_is_the_library_and_nothing_else() -> None:
    text = run(ROOT, "--fast", "--collect-only", "tests")
    files = {line.partition("::")[0] for line in text.splitlines() if "::" in line}
    for folder in fast.FOLDERS:
        assert any(file.startswith(f"tests/{folder}/") for file in files), folder
    for name in fast.FILES:
        assert f"tests/{name}" in files
    chosen = tuple(f"tests/{folder}/" for folder in fast.FOLDERS)
    others = {file for file in files if not file.startswith(chosen)}
    assert others == {f"tests/{name}" for name in fast.FILES}
