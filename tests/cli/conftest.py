"""A private server and ways to run ``oxcart`` against it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oxcart.cli.app import run
from tests.servers import ValkeyServer

#: Seconds that a program may take to start, print or end on a busy machine.
LIMIT = 80.0


class Ended:
    """The output of a command and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    def __repr__(self) -> str:
        return f"Ended({self.code}, {self.out!r}, {self.err!r})"


class Commands:
    """Runs commands in this process, which is many times faster than starting one."""

    def __init__(self, url: str | None) -> None:
        self.url = url

    def __call__(self, *arguments: str, stdin: str = "") -> Ended:
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        before, sys.stdin = sys.stdin, io.StringIO(stdin)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = run([*(("--url", self.url) if self.url else ()), *arguments])
        finally:
            sys.stdin = before
        return Ended(code, *(text.buffer.getvalue().decode() for text in (out, err)))


class Program:
    """``oxcart`` as a separate process, whose output lines can be awaited."""

    def __init__(self, arguments: list[str], folder: Path, environ: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "oxcart.cli", *arguments],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.seen: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def wait_for(self, text: str, limit: float = LIMIT) -> str:
        """The next line with a text in it."""
        end = time.monotonic() + limit
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                line = None
            if line is None:
                raise AssertionError(f"no line with {text!r}; there were:\n" + "\n".join(self.seen))
            self.seen.append(line)
            if text in line:
                return line

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends a signal and waits for the end; returns the exit code."""
        if self.process.poll() is None:
            self.send(number)
        return self.wait()

    def wait(self, limit: float = LIMIT) -> int:
        code = self.process.wait(limit)
        while (line := self._lines.get(timeout=limit)) is not None:
            self.seen.append(line)
        return code

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()


@pytest.fixture(scope="session")
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def clean(server: ValkeyServer) -> ValkeyServer:
    """The server, empty."""
    with contextlib.closing(server.client()) as client:
        client.flushall()
    return server


@pytest.fixture
def ox(clean: ValkeyServer) -> Commands:
    return Commands(clean.url)


@pytest.fixture
def start(clean: ValkeyServer, tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Starts ``oxcart`` in a folder of its own and kills it after the test."""
    programs: list[Program] = []
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("OXCART_")},
        "OXCART_URL": clean.url,
        "OXCART_HOME": str(tmp_path / "home"),
        "PYTHONUNBUFFERED": "1",
    }

    def start(*arguments: str, **more: str) -> Program:
        program = Program(list(arguments), tmp_path, environ | more)
        programs.append(program)
        return program

    yield start
    for program in programs:
        program.kill()
