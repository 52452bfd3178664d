"""A measured process, and the CPU clocks around its work.

A measured process is warm when it reports `ready`. Then the parent reads all CPU clocks, sends `go`, waits
for the report, and reads the clocks again. CPU time of a client is that of the whole process tree (the
renewer included), from the kernel's clock of each process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import redis

from benchmarks.systems import ROOT, System

WARM_LIMIT = 120.0
REPORT_LIMIT = 600.0


class Measured:
    """One measured process of a system."""

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        self._process = process
        self._name = name
        self.version = ""

    @classmethod
    async def start(cls, system: System, task: dict[str, Any]) -> Self:
        """Starts a process and waits until it is warm."""
        process = await asyncio.create_subprocess_exec(
            *system.command(task),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        measured = cls(process, f"{system.key} {task['role']}")
        try:
            measured.version = (await measured.report(WARM_LIMIT))["version"]
        except BaseException:
            await measured.end()
            raise
        return measured

    def say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())

    async def report(self, limit: float = REPORT_LIMIT) -> dict[str, Any]:
        """Waits for the next line of the process."""
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), limit)
        except TimeoutError:
            raise RuntimeError(f"{self._name}: no report within {limit:g} s") from None
        if not line:
            raise RuntimeError(f"{self._name}: ended without a report")
        facts: dict[str, Any] = json.loads(line)
        return facts

    def cpu(self) -> float:
        """Seconds of CPU that the process and its descendants have used."""
        return tree_cpu(self._process.pid)

    async def end(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(OSError, RuntimeError):
                self.say("end")
            try:
                await asyncio.wait_for(self._process.wait(), 5)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()


def process_cpu(pid: int) -> float:
    """Seconds of CPU of one process, all its threads, by the kernel's clock of that process."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return time.clock_gettime((~pid << 3) | 2)  # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED)
    return 0.0


def tree_cpu(pid: int) -> float:
    """Seconds of CPU of a process and its living descendants."""
    parents: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = Path(entry.path, "stat").read_text()
                parent = int(stat[stat.rindex(")") + 2 :].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    total, todo = 0.0, [pid]
    while todo:
        one = todo.pop()
        total += process_cpu(one)
        todo += parents.get(one, [])
    return total


@dataclass
class ServerClock:
    """The server's CPU time and calls since the clock was started.

    Attributes:
        cpu: Seconds of CPU, user and system, of its main process (INFO CPU).
        script: Seconds in scripts (INFO COMMANDSTATS).
        calls: Commands received from clients and called by scripts, by name.
    """

    client: redis.Redis
    cpu: float = 0.0
    script: float = 0.0
    calls: dict[str, int] = field(default_factory=dict)

    def start(self) -> None:
        self.client.config_resetstat()
        self._before = self._cpu()

    def stop(self) -> None:
        self.cpu = self._cpu() - self._before
        stats: dict[str, Any] = self.client.info("commandstats")
        self.calls = {name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()}
        spent = (stats.get(f"cmdstat_{name}", {}).get("usec", 0) for name in ("eval", "evalsha"))
        self.script = sum(spent) / 1e6

    def _cpu(self) -> float:
        info: dict[str, Any] = self.client.info("cpu")
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])
