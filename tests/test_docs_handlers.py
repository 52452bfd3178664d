"""The programs in docs/handlers.md run unchanged."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from oxcart.model.failure import DEFAULT_RULES

PAGE = (Path(__file__).parent.parent / "docs" / "handlers.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


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


def test_three_kinds(url: str, tmp_path: Path) -> None:
    fetched, stored, digest = run(PROGRAMS[0], url, tmp_path)
    assert fetched == "5 ['fetching a.png']"
    assert stored == "B.PNG ['storing b.png']"
    assert re.fullmatch(r"[0-9a-f]{8} \[\]", digest)


def test_around_a_handler(url: str, tmp_path: Path) -> None:
    assert run(PROGRAMS[1], url, tmp_path) == [
        "the worker starts",
        "before welcome",
        "the mailbox is closed",
        "after welcome",
        "ada: mailbox of Server",
        "the worker ends",
    ]


def test_batches(url: str, tmp_path: Path) -> None:
    lines = run(PROGRAMS[2], url, tmp_path)
    assert lines[-2:] == ["3", "it is empty"]
    assert all(line.startswith("one call for") for line in lines[:-2])


def test_testing(url: str, tmp_path: Path) -> None:
    assert run(PROGRAMS[4], url, tmp_path) == ["500 at a fake bank", "{'completed': 1}"]
    assert len(PROGRAMS) == 5


def test_a_rule_of_ones_own(url: str, tmp_path: Path) -> None:
    asked = "Classifier.default().with_rule(half_answers).classify(json.JSONDecodeError('', '', 0))"
    assert run(f"{PROGRAMS[3]}\nprint({asked})", url, tmp_path) == ["temporary"]


def test_the_table_of_exceptions_is_the_default_table() -> None:
    section = PAGE.partition("## Failing")[2].partition("## Testing")[0]
    rows = [
        line.strip("| ").split(" | ") for line in section.splitlines() if line.endswith((" yes |", " no |"))
    ]
    assert len(rows) == len(DEFAULT_RULES)
    for rule, (errors, category, retried) in zip(DEFAULT_RULES, rows, strict=True):
        assert (category, retried) == (rule.category.value, "yes" if rule.category.retryable else "no")
        for kind in rule.types:
            assert kind.__name__ in errors
        for name in rule.names:
            package, _, kind_name = name.partition(".")
            assert kind_name in errors
            assert package == "*" or package.partition("_")[0] in errors
        for number in rule.errnos:
            assert errno.errorcode[number] in errors
        for low, high in rule.statuses:
            assert (str(low) if low == high else f"{low}–{high}") in errors
