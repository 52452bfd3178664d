"""docs/http.md: its program runs, and its tables are those of the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

from oxcart.http import middleware, protocol, queues, server
from oxcart.http.application import MAX_BODY
from oxcart.http.errors import Code
from tests.http.test_access import NEEDS

PAGE = (Path(__file__).parents[2] / "docs" / "http.md").read_text("utf-8")


def test_the_program_runs(url: str, tmp_path: Path) -> None:
    program, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)  # the other one is a fragment
    file = tmp_path / "program.py"
    file.write_text(program)
    environ = {**os.environ, "OXCART_URL": url}
    done = subprocess.run(
        [sys.executable, str(file)], env=environ, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["delayed Hello Ada!", "2 completed"]


def test_the_routes_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `((?:GET|POST|PUT|PATCH|DELETE) [^`]+)` \| (\w+) \|", PAGE, re.MULTILINE)
    assert dict(rows) == {route: role or "none" for route, role in NEEDS.items()}


def test_the_codes_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| \d{3} \|", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(get_args(Code))


def test_the_bounds_are_those_of_the_code() -> None:
    assert MAX_BODY == 16 * 1024 * 1024
    assert (protocol.MAX_HEAD, server.MAX_CONNECTIONS, server.GRACE) == (64 * 1024, 4000, 10)
    assert (middleware.REQUEST_SECONDS, queues.MAX_CHANGED) == (60, 10_000)
