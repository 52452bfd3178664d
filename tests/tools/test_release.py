"""The checks of a release: its files are complete, its version has one source, its licences are free."""

from __future__ import annotations

import re
import zipfile
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

import pytest
from tools.release import artifacts, licences, supply
from tools.release.__main__ import main
from tools.release.environments import SUPPORTED, TRIED, interpreter

import oxcart
from tests.documented import ROOT


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return artifacts.build(tmp_path_factory.mktemp("release") / "dist")


def test_the_files_of_a_release_are_complete(built: tuple[Path, Path]) -> None:
    assert artifacts.problems(*built) == []


def test_a_missing_script_and_a_foreign_file_are_found(built: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, sdist = built
    broken = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(broken, "w") as target:
        for name in source.namelist():
            if not name.endswith("bullmq/lua/add.lua"):
                target.writestr(name, source.read(name))
        target.writestr("tests/conftest.py", "")
    found = artifacts.problems(broken, sdist)
    assert found == ["the wheel lacks oxcart/broker/bullmq/lua/add.lua", "the wheel has tests/conftest.py"]


def test_the_version_has_one_source() -> None:
    version = artifacts.version()
    assert oxcart.__version__ == version
    source = (file for file in (ROOT / "src").rglob("*.py"))
    assert [
        file.name for file in source if re.search(rf"[\"']{re.escape(version)}[\"']", file.read_text())
    ] == []


def test_licences_of_what_is_installed_are_free() -> None:
    assert licences.problems(distributions()) == []


@pytest.mark.parametrize(
    ("licence", "free"),
    [
        ("MIT", True),
        ("Apache-2.0 OR BSD-3-Clause", True),
        ("BSD-3-Clause AND 0BSD AND MIT AND Zlib AND CC0-1.0", True),
        ("GPL-3.0-only", False),
        ("MIT AND GPL-3.0-only", False),
        ("GPL-2.0-only OR MIT", True),
        ("", False),
    ],
)
def test_a_licence_is_free_in_every_part(licence: str, free: bool) -> None:
    assert licences.is_free(licence) == free


def test_a_package_without_a_licence_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1\n")
    assert licences.problems([Distribution.at(tmp_path)]) == ["licence of odd 1: none stated"]


def test_advisories_and_unknown_packages_are_told_apart() -> None:
    answer = {
        "dependencies": [
            {"name": "good", "version": "1", "vulns": []},
            {"name": "bad", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}]},
            {"name": "unknown", "skip_reason": "not found"},
        ]
    }
    assert supply.read(answer) == (["bad 2: PYSEC-1, fixed in 3"], ["unknown"])


def test_newest_release_without_an_answer_is_looked_up_at_its_package() -> None:
    descriptions: dict[str, dict[str, Any]] = {
        "good": {"info": {"version": "1"}, "vulnerabilities": []},
        "bad": {
            "info": {"version": "2"},
            "vulnerabilities": [
                {"id": "PYSEC-1", "fixed_in": ["3", "2.1"], "withdrawn": None},
                {"id": "PYSEC-2", "fixed_in": [], "withdrawn": "2026-01-01T00:00:00Z"},
            ],
        },
        "old": {"info": {"version": "4"}, "vulnerabilities": []},
    }
    pins = {"good": "1", "bad": "2", "old": "3", "absent": "1"}
    found = supply.of_newest(pins, ask=lambda names: [descriptions.get(name) for name in names])
    assert found == (["bad 2: PYSEC-1, fixed in 3, 2.1"], ["old", "absent"])


def test_a_python_is_found_by_its_version() -> None:
    assert any(interpreter(python) is not None for python in SUPPORTED)
    assert interpreter("2.4") is None


@pytest.mark.parametrize("name", ["site", "release"])
def test_the_tools_of_a_target_are_pinned_with_hashes(name: str) -> None:
    lock = (ROOT / "tools" / name / "requirements.lock").read_text()
    pins = re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)
    asked = re.findall(r"^([\w-]+)", (ROOT / "tools" / name / "requirements.in").read_text(), re.MULTILINE)
    assert set(asked) <= set(pins)
    assert lock.count("--hash=sha256:") >= len(pins)
    assert not re.search(r"://|--index|--find-links", lock)


def test_the_pythons_of_the_machine_are_listed_and_the_others_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--list"]) == 0
    shown = capsys.readouterr()
    listed = dict(line.split(" ", 1) for line in shown.out.splitlines())
    assert all(Path(path).exists() for path in listed.values())
    assert {f"{python}:" for python in (*SUPPORTED, *TRIED) if python not in listed} == {
        line.split()[1] for line in shown.err.splitlines()
    }
