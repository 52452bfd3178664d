"""The worker processes of a mixed fleet, and the record that all of them write.

Every handler writes a line when it begins and one when it ends, to one file opened for appending: the order
of the lines is the order of events over all processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.systems import pypi_environment

from tests.interop.mixed.plan import QUEUES
from tests.nodes import NODE_FOLDER, installed

ROOT = Path(__file__).parents[3]
PYPI = Path(__file__).with_name("pypi.py")
#: Lease of peers that are not killed; the loss of a killed worker must be noticed sooner.
LONG_LEASE, CHECK, STALLS = 30_000, 1_000, 15
CONCURRENCY = {"node5": 8, "node6": 8, "pypi": 8, "oxcart": 24}


@dataclass(frozen=True)
class Line:
    """One line of the diary."""

    what: str
    job: tuple[str, str]
    start: int
    side: str
    pid: int


class Diary:
    """The file that all handlers write to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self._under_way: dict[tuple[tuple[str, str], int], int] = {}

    def rest(self, start: int) -> Iterator[Line]:
        """Returns all complete lines from a place in the file on."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(start)
            for text in file:
                if not text.endswith(b"\n"):
                    return
                self._read = start = start + len(text)
                yield _line(text)

    def works(self, pid: int) -> bool:
        """Whether a process is running a job. Reads only the new lines."""
        for line in self.rest(self._read):
            if line.what == "began":
                self._under_way[line.job, line.start] = line.pid
            else:
                self._under_way.pop((line.job, line.start), None)
        return pid in self._under_way.values()


@dataclass
class Crews:
    """Processes by name; `killed` holds those that the test killed."""

    folder: Path
    url: str
    victims_url: str
    lease: int
    victims: tuple[str, ...]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    killed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.diary = Diary(self.folder / "diary")

    def start(self, name: str) -> None:
        """Starts the worker of a name such as `oxcart-1`, on all queues."""
        side = name.partition("-")[0]
        settings = {
            "role": "work",
            "side": side,
            "url": self.victims_url if name in self.victims else self.url,
            "queues": list(QUEUES),
            "name": name,
            "diary": str(self.diary.path),
            "concurrency": CONCURRENCY[side],
            "lock": self.lease if name in self.victims else LONG_LEASE,
            "check": CHECK,
            "stalls": STALLS,
        }
        if side == "oxcart":
            command = [sys.executable, "-m", "tests.crew"]
        elif side == "pypi":
            command = [str(pypi_environment() / "bin" / "python"), str(PYPI)]
        else:
            command = ["node", str(NODE_FOLDER / "crew.js")]
            settings["folder"] = str(installed("v" + side.removeprefix("node")))
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(
                [*command, json.dumps(settings)], cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log
            )

    def ready(self, name: str, limit: float = 60.0) -> None:
        """Waits until a worker reports that it is ready."""
        log, end = self.folder / f"{name}.log", time.monotonic() + limit
        while "ready" not in log.read_text(errors="replace"):
            assert time.monotonic() < end, f"{name} is not ready within {limit:g} s:\n{self.logs()}"
            time.sleep(0.02)

    def kill(self, name: str) -> bool:
        """Kills a worker if it is running a job, starts another in its place and waits until it is ready.

        It is stopped before the check, so that the job cannot end meanwhile.
        """
        process = self.running[name]
        process.send_signal(signal.SIGSTOP)
        _until_stopped(process.pid)
        if not self.diary.works(process.pid):
            process.send_signal(signal.SIGCONT)
            return False
        process.kill()
        process.wait()
        self.killed.add(process.pid)
        self.start(name)
        self.ready(name)
        return True

    def died(self) -> list[str]:
        """The workers that ended by themselves."""
        return [name for name, process in self.running.items() if process.poll() is not None]

    def lines(self) -> list[Line]:
        return list(self.diary.rest(0))

    def runs(self) -> Counter[str]:
        """Counts the runs that each side started."""
        return Counter(line.side for line in self.lines() if line.what == "began")

    def logs(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-2000:]}"
            for path in sorted(self.folder.glob("*.log"))
        )

    def end(self) -> None:
        for process in self.running.values():
            process.kill()
        for process in self.running.values():
            process.wait()
            if process.stdin is not None:
                process.stdin.close()


def _line(text: bytes) -> Line:
    found: dict[str, Any] = json.loads(text)
    job = (found["queue"], found["job"])
    return Line(found["what"], job, found["start"], found["side"], found["pid"])


def _until_stopped(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state in "TZ":
                return
            os.sched_yield()
