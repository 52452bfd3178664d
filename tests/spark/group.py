"""A program in a session of its own, whose driver, JVM and Python workers a test finds and kills."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.servers import wait_until

ROOT = Path(__file__).parents[2]
#: The processes to kill, in turn.
VICTIMS = ("workers", "jvm", "driver", "all")
_PATIENCE = 300


class Group:
    """A program and what it starts, as one session of processes.

    Args:
        command: The program.
        log: Where its output is appended.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        with log.open("ab") as message:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=message,
                stderr=message,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self, limit: float) -> int:
        return self._process.wait(limit)

    def parts(self) -> dict[str, list[int]]:
        """Returns its processes by kind. Spark's Python workers have a process group of their own."""
        actual = subprocess.run(["ps", "-eo", "pid=,sid=,args="], capture_output=True, text=True, check=True)
        found: dict[str, list[int]] = {name: [] for name in VICTIMS}
        for line in actual.stdout.splitlines():
            pid, session, arguments = line.split(None, 2)
            if int(session) != self._process.pid:
                continue
            kind = (
                "driver"
                if int(pid) == self._process.pid
                else "workers"
                if "pyspark.daemon" in arguments
                else "jvm"
                if "java" in arguments
                else "all"
            )
            found[kind].append(int(pid))
            if kind != "all":
                found["all"].append(int(pid))
        return found

    def kill(self, victim: str) -> None:
        for pid in self.parts()[victim]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def clear(self) -> None:
        """Waits until all its processes have ended by themselves after the kill."""
        try:
            self._process.wait(_PATIENCE)
            wait_until(lambda: not self.parts()["all"], "nothing of a killed pipeline is left", _PATIENCE)
        finally:
            self.kill("all")
            self._process.wait(30)
