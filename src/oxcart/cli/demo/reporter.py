"""Starts the Spark process of a demo, requests its report, and stops it in every case."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from oxcart.cli.demo.spark import Task
from oxcart.cli.exits import CommandError

#: Lines of the Spark process's log that an error shows.
_TAIL = 15


class Reporter:
    """The parent's side of the Spark process.

    Args:
        task: The arguments of the process.
        log: File for the process's standard error.
        say: Shows a line to the user.
    """

    def __init__(self, task: Task, log: Path, say: Callable[[str], None]) -> None:
        self._task = task
        self._log = log
        self._say = say
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Starts the process. It prepares Spark while the jobs run."""
        os.makedirs(self._task.scratch, exist_ok=True)
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "oxcart.cli.demo.spark",
                msgspec.json.encode(self._task).decode(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=self._task.scratch,
                env={**os.environ, "TMPDIR": self._task.scratch},
                limit=1 << 24,
                start_new_session=True,  # a process group of its own: `take_down` kills it with its JVM
            )

    def begin(self) -> None:
        """Lets the process read events: the queue exists."""
        self._order("begin")

    async def finish(self) -> dict[str, Any]:
        """Requests the report after the last job ended, and waits for it.

        Returns:
            The report, or ``{"absent": reason}`` if Spark cannot run on this machine.

        Raises:
            CommandError: The process failed, or ended without a report.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        self._order("end")
        async for line in self._process.stdout:
            message: dict[str, Any] = json.loads(line)
            if "say" in message:
                self._say(message["say"])
            elif "absent" in message:
                return message
            elif "failed" in message:
                raise CommandError(message["failed"])
            else:
                report: dict[str, Any] = message["report"]
                await self._process.wait()
                return report
        tail = (await asyncio.to_thread(self._log.read_text, errors="replace")).splitlines()[-_TAIL:]
        raise CommandError("\n".join(["the Spark process ended without a report:", *tail]))

    async def take_down(self) -> None:
        """Kills the process and everything it started."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    def _order(self, word: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        # `finish` reports the log of a process that ended early.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._process.stdin.write(f"{word}\n".encode())
