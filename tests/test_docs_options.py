"""docs/options.md lists every option of jobs, queues, handlers and workers with its default."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from oxcart import Queue, Worker
from oxcart.cli.app import app
from oxcart.model.backoff import DEFAULT_BACKOFF
from oxcart.model.duration import parse_ms
from oxcart.model.metadata import MAX_CORRELATION_ID, MAX_TAG_NAME, MAX_TAG_VALUE, MAX_TAGS
from oxcart.model.options import (
    DEFAULT_KEEP_LOGS,
    DEFAULT_OPTIONS,
    DEFAULT_TIMEOUT,
    MAX_IDEMPOTENCY_KEY,
    MAX_PRIORITY,
    JobOptions,
)
from oxcart.model.payload import MAX_SIZE_LIMIT
from oxcart.model.retention import DEFAULT_AGES

PAGE = (Path(__file__).parent.parent / "docs" / "options.md").read_text()

#: Arguments that are no options: what an object is about, and what tests replace.
LEFT_OUT = {"name", "defaults", "queues", "self", "function", "options", "clock", "rand"}


def table(heading: str) -> dict[str, str]:
    """Returns the options of a section and the texts of their defaults."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", section, re.MULTILINE))


def defaults(function: Any, *more: str) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    return {name: one.default for name, one in parameters.items() if name not in LEFT_OUT or name in more}


CODE: Mapping[str, dict[str, Any]] = {
    "A job": {
        field.name: getattr(DEFAULT_OPTIONS, field.name) for field in msgspec.structs.fields(JobOptions)
    },
    "A queue": defaults(Queue.__init__),
    "A handler": defaults(Queue.job, "name"),
    "A worker": defaults(Worker, "name"),
}
#: Defaults that the page states in words.
IN_WORDS = {
    "backoff": "exponential from 1 s, ×2, at most 1 h",
    "timeout": "the worker's: 30 min",
    "max_started": "1 000 starts without an end",
}


@pytest.mark.parametrize("heading", CODE)
def test_every_option_is_listed_with_its_default(heading: str) -> None:
    stated, real = table(heading), CODE[heading]
    assert set(stated) == set(real)
    for option, text in stated.items():
        if not text.startswith("`"):
            assert text == IN_WORDS[option]
            continue
        value, default = ast.literal_eval(text.strip("`")), real[option]
        if option == "idempotency_window":
            value = parse_ms(value, option)
        assert value == default, option


def test_defaults_in_words_are_those_of_the_code() -> None:
    kind = DEFAULT_BACKOFF
    assert (kind.type, kind.delay, kind.multiplier, kind.cap) == ("exponential", 1000, 2.0, 3_600_000)
    assert (DEFAULT_TIMEOUT, DEFAULT_KEEP_LOGS, DEFAULT_AGES) == (1_800_000, 1000, (86_400, 30 * 86_400))
    assert (MAX_PRIORITY, MAX_IDEMPOTENCY_KEY, MAX_CORRELATION_ID) == (2_097_151, 256, 256)
    assert (MAX_TAGS, MAX_TAG_NAME, MAX_TAG_VALUE, MAX_SIZE_LIMIT) == (32, 64, 256, 16 * 2**20)
    assert "the last 1 000 lines" in PAGE
    assert "the queue's: 24 h" in PAGE
    assert "the queue's: 30 d" in PAGE


def test_the_command_line_has_ten_handlers_at_once() -> None:
    import typer

    command: Any = typer.main.get_command(app)
    (concurrency,) = (one for one in command.commands["work"].params if one.name == "concurrency")
    assert concurrency.default == 10
    assert "`oxcart work` has 10" in PAGE
