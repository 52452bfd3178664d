"""Every command with hostile arguments: a typed refusal or a result, never a traceback and never a hang.

Commands that serve or follow until they are ended, and those that run Spark, are left out.
A command line per command is tried, or one for every 20 of `OXCART_FUZZ=1000`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from oxcart.cli.app import app
from oxcart.sync import Queue
from tests.cli.conftest import Commands
from tests.servers import ValkeyServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 + 60 * int(os.environ.get("OXCART_FUZZ", "2")))]

LINES = max(1, int(os.environ.get("OXCART_FUZZ", "1")) // 20)
#: Commands that go on until they are ended, start other programs, or run Spark.
LASTING = {
    *("work", "serve", "top", "events", "demo", "up", "server start", "server stop", "pipeline run"),
    *("pipeline tail", "pipeline compact", "pipeline erase", "pipeline rebuild", "pipeline report"),
    *("pipeline iceberg", "pipeline plain", "pipeline migrate", "pipeline query", "pipeline expire"),
}
#: Options that make a command wait for something to happen.
WAITING = {"--follow", "-f", "--watch", "--wait"}
#: What a user, or a script with a broken variable, may pass.
TEXTS = (
    *("", " ", "-", "--", "-1", "0", "1", "nan", "inf", "1e400", "9" * 400, "a:b:c", "\x1b[31m", "\u202e"),
    *("\u2028", "\x00x".replace("\x00", "\x01"), "{}", "[]", '{"a":', "null", "../../etc", "%s%n", "$(id)"),
    *("1h", "-5m", "2026-99-99", "now", "mail", "q#1", "q@all", "😀" * 50, "\udc80", "x" * 5000, "🅀:{x}"),
)


def commands() -> Iterator[tuple[str, Any]]:
    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        below = getattr(command, "commands", None)
        if not below:
            yield " ".join(path), command
        for name, one in (below or {}).items():
            yield from walk(one, (*path, name))

    return walk(typer.main.get_command(app), ())


ALL = dict(commands())


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


def line(dice: random.Random, command: Any) -> list[str]:
    """Returns random arguments and options of a command."""
    words: list[str] = []
    for parameter in command.params:
        is_option = parameter.param_type_name == "option"
        if is_option and (parameter.name == "help" or WAITING & set(parameter.opts)):
            continue
        if is_option and dice.random() < 0.25:
            words.append(dice.choice(parameter.opts))
            if not parameter.is_flag:
                words.append(dice.choice(TEXTS))
        elif not is_option and dice.random() < 0.9:
            words.append(dice.choice(TEXTS))
    return words


@pytest.mark.parametrize("name", sorted(set(ALL) - LASTING))
def test_hostile_arguments_end_with_an_exit_code(
    name: str, server: ValkeyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name.startswith(("pipeline", "history")):
        monkeypatch.setenv("OXCART_LAKE", str(tmp_path / "lake"))
    monkeypatch.chdir(tmp_path)
    dice, run = random.Random(name), Commands(server.url)
    for _ in range(LINES):
        words = line(dice, ALL[name])
        ended = run(*name.split(), *words)
        assert ended.code in range(10), (words, ended)
        assert "Traceback" not in ended.err, (words, ended)


def test_a_lake_that_cannot_be_read_is_refused_with_its_reason(server: ValkeyServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder, why in ((tmp_path / "file", "Not a directory"), ("9" * 400, "File name too long")):
        ended = Commands(server.url)("history", "slow", "--lake", str(folder))
        assert (ended.code, why in ended.err) == (1, True), ended


def test_hostile_text_of_jobs_reaches_no_terminal(server: ValkeyServer) -> None:
    evil = "\x1b]0;title\x07\x1b[2J\u202e\r\n"
    with Queue("mail", url=server.url) as queue:
        queue.add("job", {"text": evil}, tags={"evil": evil[:20].replace("\r\n", "")}, delay="1h")
        job = queue.add("job", evil)
    run = Commands(server.url)
    for words in (("jobs", "mail"), ("job", "mail", job.id), ("queues",)):
        ended = run(*words)
        assert ended.code == 0, ended
        assert "\x1b]0;" not in ended.out + ended.err, words
        assert "\x07" not in ended.out + ended.err, words
        assert "\u202e" not in ended.out + ended.err, words
