"""The tests of a file, and those of a suite with an expensive fixture, run in one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

_TESTS = """
import os

import pytest


@pytest.mark.parametrize("number", range(6))
def test_it(number):
    with open({record!r}, "a") as record:
        record.write(os.environ["PYTEST_XDIST_WORKER"] + "\\n")
"""


def test_a_group_has_one_process(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_xdist_make_scheduler\n")
    files = {
        "tests/spark/test_a.py": "spark",
        "tests/spark/test_b.py": "spark",
        "test_c.py": "c",
        "test_d.py": "d",
    }
    for name, group in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_TESTS.format(record=str(tmp_path / group)))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "--rootdir", ".", "."],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ran = {group: (tmp_path / group).read_text().split() for group in set(files.values())}
    assert {group: len(workers) for group, workers in ran.items()} == {"spark": 12, "c": 6, "d": 6}
    assert all(len(set(workers)) == 1 for workers in ran.values()), ran
