"""CONTRIBUTING.md and the pre-commit hooks name commands, files and words that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
HOOKS = (ROOT / ".pre-commit-config.yaml").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
SOURCE = ROOT / "src" / "oxcart"
#: Folders that the page's paths may start from.
PLACES = (
    ROOT,
    SOURCE,
    SOURCE / "broker",
    SOURCE / "broker" / "bullmq",
    SOURCE / "broker" / "bullmq" / "lua",
    SOURCE / "spark",
)


def paths() -> list[str]:
    quoted = re.findall(r"`([^`\s]+)`", PAGE)
    linked = re.findall(r"\]\(([^)]+)\)", PAGE)
    named = [text for text in quoted if re.search(r"/|\.(py|lua|md|toml)$", text) and "{" not in text]
    return sorted({*named, *linked})


@pytest.mark.parametrize("path", paths())
def test_a_path_of_the_page_exists(path: str) -> None:
    assert any((place / path).exists() for place in PLACES), path


@pytest.mark.parametrize("text", [PAGE, HOOKS], ids=["page", "hooks"])
def test_every_make_target_exists(text: str) -> None:
    named = set(re.findall(r"\bmake (?:--\w+ )*([a-z][a-z-]+)", text)) - {"up"}
    assert named
    assert named <= TARGETS, sorted(named - TARGETS)


def test_the_hooks_run_programs_of_the_environment() -> None:
    entries = re.findall(r"^ +entry: (.+)$", HOOKS, re.MULTILINE)
    assert len(entries) >= 3
    for entry in entries:
        program = entry.split()[0]
        assert program == "make" or (ROOT / program).exists(), program
    assert "repo: local" in HOOKS
    assert "https://" not in HOOKS


def test_lint_checks_format_style_layers_and_generated_code() -> None:
    recipe = MAKEFILE.partition("\nlint:")[2].partition("\n\n")[0]
    for tool in ("ruff format --check", "ruff check", "tools.sync --check", "lint-imports"):
        assert tool in recipe


@pytest.mark.parametrize(
    ("word", "file"),
    [
        ("remembered()", "broker/bullmq/lua/promote_job.lua"),
        ("remember(", "broker/bullmq/lua/promote_job.lua"),
        ("-- include:", "broker/bullmq/lua/promote_job.lua"),
        ("SILVER", "spark/transforms/build.py"),
    ],
)
def test_quoted_words_are_in_the_source(word: str, file: str) -> None:
    assert word in (SOURCE / file).read_text()


def test_the_page_is_one_page() -> None:
    assert len(PAGE.split()) < 1000
