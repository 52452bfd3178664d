"""Code on the pages: it compiles, its programs run, and its commands exist with their options."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import typer

from oxcart.cli.app import app
from tests.documented import ROOT, Block, blocks

#: Pages whose programs a test of their own runs, and which therefore run only once.
ELSEWHERE = {
    "README.md": "tests/test_examples.py",
    "docs/bridge.md": "tests/broker/bridge/test_docs.py",
    "docs/handlers.md": "tests/test_docs_handlers.py",
    "docs/http.md": "tests/http/test_page.py",
    "docs/pipeline.md": "tests/spark/test_own_session.py",
    "docs/schedules.md": "tests/test_docs_schedules.py",
    "docs/spark-jobs.md": "tests/spark/work/test_docs.py",
    "docs/steps.md": "tests/test_docs_steps.py",
    "docs/tutorial.md": "tests/test_docs_tutorial.py",
}
PAGES = [ROOT / "README.md", ROOT / "deploy" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
#: Words of a command line that end it.
_ENDS = re.compile(r"\s(?:#|\||&&|\|\||;|>|…)|\s*$")
_COMMAND = re.compile(r"(?:^|[`;|] ?)oxcart ([a-z][^`\n]*)", re.MULTILINE)


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def code(language: str) -> Iterator[Any]:
    for page in PAGES:
        for number, block in enumerate(blocks(page), 1):
            if block.language == language:
                yield pytest.param(page, block, id=f"{name(page)}-{number}")


def programs() -> Iterator[Any]:
    for param in code("python"):
        page, block = param.values
        if name(page) not in ELSEWHERE and "asyncio.run(" in block.text:
            yield param


@pytest.mark.parametrize(("page", "block"), list(code("python")))
def test_python_of_a_page_compiles(page: Path, block: Block) -> None:
    compile(block.text, name(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)


@pytest.mark.parametrize(("page", "block"), list(programs()))
def test_a_program_of_a_page_runs(
    page: Path, block: Block, url: str, store: redis.Redis, tmp_path: Path
) -> None:
    file = tmp_path / "program.py"
    file.write_text(block.text)
    done = subprocess.run(
        [sys.executable, str(file)],
        cwd=tmp_path,
        env={**os.environ, "OXCART_URL": url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("page", "test"), ELSEWHERE.items())
def test_a_page_with_a_test_of_its_own_is_read_by_it(page: str, test: str) -> None:
    named = (ROOT / test).read_text()
    assert Path(page).name in named or Path(page).stem in named


def commands(page: Path) -> list[str]:
    """The command lines of a page, in code blocks and in the text, without the program's name."""
    joined = page.read_text().replace("\\\n", " ")
    found = (re.split(_ENDS, one, maxsplit=1)[0] for one in _COMMAND.findall(joined))
    return sorted(set(found))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_of_a_page_exist_with_their_options(page: Path) -> None:
    root: Any = typer.main.get_command(app)
    everywhere = _options(root) | {"--help"}
    wrong = []
    for line in commands(page):
        # `oxcart pipeline compact`, `expire`: words in brackets and placeholders are not part of the path.
        words = re.sub(r"[\[\]]", " ", line).split()
        command = root
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        given = {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)}
        no_command = bool(words) and not words[0].startswith("-")
        if command is root and (no_command or not given <= everywhere):
            wrong.append(line)
        elif not getattr(command, "commands", None):
            unknown = given - _options(command) - everywhere
            wrong += [f"{line}: {one}" for one in sorted(unknown)]
    assert wrong == []


def _options(command: Any) -> set[str]:
    return {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
