"""The selection of ``make test-fast``: the library on one Valkey, without Node, a browser or Java.

``pytest --fast`` collects only `FOLDERS` and the checks of the project, and leaves out tests marked ``slow``
or ``node``. What the selection excludes refuses to start under it, so that a test that needs it fails.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

#: Folders of tests that a fast run collects.
FOLDERS = ("model", "broker", "engine", "queue", "sync", "testing", "compat", "observe")
#: Files beside the folders that a fast run collects.
FILES = ("test_dependencies.py", "test_public_names.py")
#: Marks of tests that a fast run leaves out.
LEFT_OUT = ("slow", "node")

#: Programs that a fast run does not start.
PROGRAMS = ("java", "node", "npm", "spark-submit")

_TESTS = Path(__file__).parent
_VARIABLE = "OXCART_FAST_TESTS"


class NotFast(RuntimeError):
    """A test of the fast selection needs a program that the selection excludes: mark the test ``slow``."""


def refuse(needed: str) -> None:
    """Raises under ``--fast``. Helpers that start what the selection excludes call this first."""
    if os.environ.get(_VARIABLE):
        raise NotFast(f"a test of `make test-fast` needs {needed}: mark it slow")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--fast``."""
    parser.addoption("--fast", action="store_true", help="only the tests of make test-fast")


def pytest_configure(config: pytest.Config) -> None:
    """Makes the excluded programs refuse to start."""
    if config.getoption("--fast"):
        os.environ[_VARIABLE] = "1"
        sys.addaudithook(_refuse_programs)


def _refuse_programs(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen" and Path(os.fsdecode(arguments[0])).name in PROGRAMS:
        refuse(str(arguments[0]))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips the folders and files that the selection excludes."""
    if not config.getoption("--fast") or not collection_path.is_relative_to(_TESTS):
        return None
    inside = collection_path.relative_to(_TESTS).parts
    if not inside or inside[0] in FOLDERS or collection_path.name in (*FILES, "__init__.py"):
        return None
    return True


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests whose mark excludes them."""
    if not config.getoption("--fast"):
        return
    out = [item for item in items if any(item.get_closest_marker(mark) for mark in LEFT_OUT)]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in set(out)]
