"""The report at the end of a demo: asks the Spark side for it, and takes that down whatever happens.

May touch: a child process and its files in the demo's folder.
"""

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

from oxcart.cli.demo_spark import Task
from oxcart.cli.exits import CommandError

#: Lines of the Spark side's log that are shown when it breaks.
_TAIL = 15


class Reporter:
    """The Spark side of a demo, seen from the demo.

    Args:
        task: What it is to do.
        log: Where its errors go.
        say: Shows a line to the user.
    """

    def __init__(self, task: Task, log: Path, say: Callable[[str], None]) -> None:
        self._task = task
        self._log = log
        self._say = say
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Starts it; it gets ready while the jobs run."""
        os.makedirs(self._task.scratch, exist_ok=True)
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "oxcart.cli.demo_spark",
                msgspec.json.encode(self._task).decode(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=self._task.scratch,
                env={**os.environ, "TMPDIR": self._task.scratch},
                limit=1 << 24,
                start_new_session=True,  # a group of its own, so that it can be ended with its JVM
            )

    def begin(self) -> None:
        """Tells it that the queue is there."""
        self._order("begin")

    async def finish(self) -> dict[str, Any]:
        """Tells it that all jobs have ended, and waits.

        Returns:
            The report; or, where Spark cannot run here, ``absent``: why.

        Raises:
            CommandError: It broke.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        self._order("end")
        async for line in self._process.stdout:
            told: dict[str, Any] = json.loads(line)
            if "say" in told:
                self._say(told["say"])
            elif "absent" in told:
                return told
            else:
                report: dict[str, Any] = told["report"]
                await self._process.wait()
                return report
        tail = (await asyncio.to_thread(self._log.read_text, errors="replace")).splitlines()[-_TAIL:]
        raise CommandError("\n".join(["the report could not be made:", *tail]))

    async def take_down(self) -> None:
        """Ends it with everything that it started."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    def _order(self, word: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        # One that has ended already says why on its output.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._process.stdin.write(f"{word}\n".encode())
