"""The programs in docs/schedules.md run unchanged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import redis

PAGE = (Path(__file__).parent.parent / "docs" / "schedules.md").read_text()
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


def test_a_schedule(url: str, tmp_path: Path) -> None:
    lines = run(PROGRAMS[0], url, tmp_path)
    assert lines == ["heartbeat 50", "weekday-sales 0 7 * * MON-FRI", *["building pulse"] * 3]


def test_schedules_on_the_decorator(url: str, tmp_path: Path) -> None:
    assert sorted(run(PROGRAMS[1], url, tmp_path)) == ["digest program.py", "poll program.py"]


def test_limits(url: str, tmp_path: Path) -> None:
    assert run(PROGRAMS[2], url, tmp_path) == ["20 Rate(most=100, per_ms=60000)", "[200, 200]"]
    assert len(PROGRAMS) == 3
