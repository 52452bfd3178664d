"""The checks of a release: its files are complete, its version has one source, its licences are free."""

from __future__ import annotations

import re
import zipfile
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

import pytest
from tools.release import artifacts, licences, supply
from tools.release.__main__ import audit, main
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


@pytest.mark.parametrize(
    ("version", "changelog", "problem"),
    [
        ("0.2.0", "\n## [0.2.0] - 2026-12-01\n", None),
        ("0.2.0", "\n## [Unreleased]\n", "CHANGELOG.md has no section '## [0.2.0] - YYYY-MM-DD'"),
        ("0.2.0", "\n## [0.2.0]\n", "CHANGELOG.md has no section '## [0.2.0] - YYYY-MM-DD'"),
        ("0.2.0.dev0", "\n## [Unreleased]\n\n## [0.1.0] - 2026-11-18\n", None),
        ("0.2.0.dev0", "\n## [0.1.0] - 2026-11-18\n", "CHANGELOG.md has no section [Unreleased]"),
        (
            "0.1.0rc1",
            "\n## [Unreleased]\n\n## [0.1.0] - 2026-11-18\n",
            "0.1.0rc1 comes before 0.1.0, which CHANGELOG.md calls released",
        ),
    ],
)
def test_a_release_has_a_dated_section_in_the_changelog(
    version: str, changelog: str, problem: str | None
) -> None:
    assert artifacts.changelog_problems(version, changelog) == ([problem] if problem else [])


def test_manifests_name_the_images_of_the_version() -> None:
    manifest = (ROOT / "deploy" / "kubernetes" / "base" / "kustomization.yaml").read_text()
    assert set(re.findall(r'newTag: "([^"]+)"', manifest)) == {artifacts.version()}


def test_an_audit_without_an_answer_fails_unless_that_is_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = tmp_path / "pip-audit"
    silent.write_text("#!/bin/sh\necho no route to the registry >&2\nexit 1\n")
    silent.chmod(0o755)
    monkeypatch.setattr("tools.release.__main__.TOOLS", tmp_path)
    pinned = tmp_path / "sbom.txt"
    pinned.write_text(supply.pins_of(distributions()))
    said = "pip-audit gave no answer for sbom.txt: no route to the registry"
    assert audit(pinned, strict=False, offline=False) == [said]
    assert audit(pinned, strict=False, offline=True) == []
    assert capsys.readouterr().out == f"{said}\n" * 2


def test_the_packages_of_the_bill_of_materials_are_audited() -> None:
    pins = supply.pins_of(distributions()).splitlines()
    assert {re.sub("==.*", "", pin) for pin in pins} >= {"msgspec", "hiredis"}
    assert all(re.fullmatch(r"[\w.-]+==\S+", pin) for pin in pins)


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
