"""The programs in docs/tracing.md run unchanged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import redis

PAGE = (Path(__file__).parent.parent / "docs" / "tracing.md").read_text()
PROGRAMS = [code for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "asyncio.run(" in code]


def run(program: str, url: str, tmp_path: Path) -> list[str]:
    file = tmp_path / "program.py"
    file.write_text(program)
    done = subprocess.run(
        [sys.executable, str(file)],
        env={**os.environ, "OXCART_URL": url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(autouse=True)
def _empty(store: redis.Redis) -> None:
    """A server without jobs."""


def test_traces(url: str, tmp_path: Path) -> None:
    assert run(PROGRAMS[0], url, tmp_path) == ["add emails", "sign up", "wait emails", "process emails"]


def test_errors(url: str, tmp_path: Path) -> None:
    reason = "no route to the mail server"
    first, *rest = run(PROGRAMS[1], url, tmp_path)
    assert first == f"ConnectionError {reason} 1 False"
    # The result may be read before or after the report.
    assert sorted(rest) == [f"ConnectionError {reason} 2 True", "temporary"]


def test_logs(url: str, tmp_path: Path) -> None:
    (line,) = run(PROGRAMS[2], url, tmp_path)
    assert line.startswith("event='sending' attempt=1 correlation_id='sign-up-7'")
    assert "queue='emails'" in line
