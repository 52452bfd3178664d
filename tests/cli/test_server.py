"""``oxcart server``: starting and stopping the embedded Valkey."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from oxcart.broker import embedded
from oxcart.cli import server
from tests.cli.conftest import Commands, Program
from tests.servers import wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "data"
    yield folder
    Commands(None)("server", "stop", "--folder", str(folder))
    wait_until(lambda: embedded.status(folder) is None, "no server left")


def test_start_keeps_it_until_stop(folder: Path) -> None:
    ox = Commands(None)
    assert ox("server", "status", "--folder", str(folder)).code == 1
    started = ox("server", "start", "--folder", str(folder))
    assert started.code == 0
    url = started.out.strip()
    # A second start finds the first, and others can use it by its URL.
    assert ox("server", "start", "--folder", str(folder), "--json").json["url"] == url
    assert Commands(url)("add", "mail", "hello", "--job-id", "a").code == 0
    status = ox("server", "status", "--folder", str(folder), "--json").json
    assert status["running"] is True
    assert status["url"] == url
    assert [user["name"] for user in status["users"]] == ["oxcart-server"]
    assert "oxcart-server" in ox("server", "status", "--folder", str(folder)).out
    assert ox("server", "stop", "--folder", str(folder)).out == "stopped\n"
    assert embedded.status(folder) is None
    assert ox("server", "stop", "--folder", str(folder)).out == "was not running\n"
    # Its data is there at the next start.
    assert ox("server", "start", "--folder", str(folder)).out.strip() == url
    assert Commands(url)("job", "mail", "a", "--json").json["state"] == "scheduled"


def test_it_is_started_again_when_its_keeper_is_killed(folder: Path) -> None:
    ox = Commands(None)
    ox("server", "start", "--folder", str(folder))
    first = ox("server", "status", "--folder", str(folder), "--json").json
    os.kill(first["keeper_pid"], signal.SIGKILL)

    def back() -> bool:
        status = embedded.status(folder)
        return (
            status is not None and status["keeper_pid"] != first["keeper_pid"] and status["state"] == "ready"
        )

    wait_until(back, "another keeper")


def test_stop_leaves_it_to_other_users(folder: Path, start: Callable[..., Program], tmp_path: Path) -> None:
    ox = Commands(None)
    ox("server", "start", "--folder", str(folder))
    # A tail of events uses the server as well.
    tail = start("events", "mail", OXCART_URL="", OXCART_HOME=str(folder))
    wait_until(lambda: len((embedded.status(folder) or {"users": []})["users"]) == 2, "two users")
    ended = ox("server", "stop", "--folder", str(folder))
    assert ended.code == 1
    assert str(tail.process.pid) in ended.err
    tail.kill()
    wait_until(lambda: embedded.status(folder) is None, "gone with its last user")


def test_in_the_foreground(folder: Path, start: Callable[..., Program]) -> None:
    program = start("server", "start", "--foreground", "--folder", str(folder))
    assert program.wait_for("://")
    assert embedded.status(folder) is not None
    assert program.end(signal.SIGINT) == 0
    wait_until(lambda: embedded.status(folder) is None, "no server left")


def test_interrupt_right_after_the_start_message_exits_cleanly(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(sys, "argv", sys.argv[:])  # it takes another name
    monkeypatch.setattr(server, "_say", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    try:
        assert Commands(None)("server", "start", "--foreground", "--folder", str(folder)).code == 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_interrupt_inside_the_wait_for_signals_exits_cleanly(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(sys, "argv", sys.argv[:])  # it takes another name
    sent = threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT))

    def interrupt(frame: FrameType, event: str, _: Any) -> Any:
        # Inside a wait of the standard library, where it holds a lock.
        code = frame.f_code
        if event == "line" and code.co_name == "wait" and code.co_filename == threading.__file__:
            signal.raise_signal(signal.SIGINT)
        return interrupt

    def said(*_: object) -> None:
        sent.start()
        sys.settrace(interrupt)

    monkeypatch.setattr(server, "_say", said)
    try:
        assert Commands(None)("server", "start", "--foreground", "--folder", str(folder)).code == 0
    finally:
        sys.settrace(None)
        sent.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_holder_that_has_ended_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    seen: list[dict[str, Any] | None] = [{"users": [{"pid": gone.pid, "name": "oxcart-server"}]}, None]
    monkeypatch.setattr(server, "_status", lambda _: seen.pop(0))
    assert Commands(None)("server", "stop", "--folder", str(tmp_path)).out == "stopped\n"


def test_an_unusable_folder_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    ended = Commands(None)("server", "start", "--folder", str(file / "data"))
    assert ended.code == 3
    assert "cannot be used" in ended.err
    assert ended.err.count("\n") == 1
