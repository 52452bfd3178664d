"""The names of ``oxcart.http``, and the error where the packages of the extra are missing."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("first", ["oxcart.http.server", "oxcart.http", "oxcart.http.client"])
def test_a_name_is_the_same_whatever_was_imported_before(first: str) -> None:
    assert run(f"import {first}; from oxcart.http import Client, app; print(callable(app))").strip() == "True"


@pytest.mark.parametrize(
    ("package", "code"),
    [
        ("litestar", "from oxcart.http import app"),
        ("httpx", "from oxcart.http import Client"),
        ("litestar", "from oxcart.cli.app import run; run(['serve', '--queues', 'q'])"),
        ("uvicorn", "from oxcart.cli.app import run; run(['serve', '--queues', 'q'])"),
    ],
)
def test_a_missing_extra_is_named(package: str, code: str) -> None:
    out = run(f"import sys; sys.modules[{package!r}] = None\n{code}")
    assert "pip install 'oxcart[web]'" in out


def test_the_error_of_a_client_needs_no_extra() -> None:
    out = run(
        "import sys; sys.modules['httpx'] = sys.modules['litestar'] = None\n"
        "from oxcart.errors import ApiRefused; print(ApiRefused(409, 'conflict', 'it has ended'))"
    )
    assert out.strip() == "it has ended (409 conflict)"


def test_an_unknown_name() -> None:
    assert "no attribute 'ap'" in run("import oxcart.http; oxcart.http.ap")
