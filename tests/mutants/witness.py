"""A pytest plugin that records the end of each test, and where the product was imported from."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

import oxcart

#: The folder that the product must come from, and the file that the record goes to.
SOURCE_VARIABLE = "OXCART_MUTANT_SOURCE"
RECORD_VARIABLE = "OXCART_MUTANT_RECORD"

_record: dict[str, Any] = {"collection": [], "tests": []}


def pytest_configure(config: pytest.Config) -> None:
    """Ends the run where the product is not the copy."""
    wanted = Path(os.environ[SOURCE_VARIABLE]).resolve()
    found = Path(oxcart.__file__).resolve()
    _record["origin"] = str(found)
    if wanted not in found.parents:
        pytest.exit(f"oxcart was imported from {found}, not from {wanted}", returncode=9)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Records an error of the collection."""
    if report.failed:
        _record["collection"].append(str(report.longrepr))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Records how a phase of a test ended."""
    report = yield
    if report.when == "call" or not report.passed:
        _record["tests"].append(
            {
                "test": item.nodeid,
                "phase": report.when,
                "outcome": report.outcome,
                "errors": [] if call.excinfo is None else _kinds(call.excinfo.value),
                "text": report.longreprtext[-20_000:],
            }
        )
    return report


def _kinds(error: BaseException) -> list[str]:
    """The names of an error's classes; of a group those of the errors in it."""
    if isinstance(error, BaseExceptionGroup):
        return [kind for one in error.exceptions for kind in _kinds(one)]
    return [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Writes the record."""
    Path(os.environ[RECORD_VARIABLE]).write_text(json.dumps(_record))
