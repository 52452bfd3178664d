"""Memory and CPU time of this process and its descendants, by kind of process, from ``/proc``."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
#: Threads of a JVM that compile.
_COMPILERS = ("C1 Compiler", "C2 Compiler")


def processes() -> Iterator[tuple[str, Path]]:
    """Returns this process and its descendants with their kinds."""
    wanted = [os.getpid()]
    while wanted:
        process = Path("/proc", str(wanted.pop()))
        try:
            command = (process / "cmdline").read_bytes()
            for task in (process / "task").iterdir():
                wanted += map(int, (task / "children").read_text().split())
        except OSError:
            continue
        yield _kind(command, process), process


def resident_mb() -> float:
    """Memory of all but the server and the load."""
    total = 0
    for kind, process in processes():
        if kind not in ("server", "load"):
            try:
                total += int((process / "statm").read_text().split()[1])
            except OSError:
                continue
    return total * _PAGE / 1e6


def cpu_seconds() -> dict[str, float]:
    """Returns CPU seconds by kind of process. An ended process counts for the parent that waited for it."""
    found: dict[str, float] = defaultdict(float)
    for kind, process in processes():
        try:
            _, _, fields = (process / "stat").read_text().rpartition(") ")
            found[kind] += sum(map(int, fields.split()[11:15])) / _TICK
        except OSError:
            continue
        if kind == "JVM":
            compiling = _compiling(process)
            found["JVM compiling"] += compiling
            found["JVM"] -= compiling
    return found


def _compiling(process: Path) -> float:
    """CPU seconds of the threads of a JVM that compile."""
    total = 0.0
    for task in (process / "task").glob("*"):
        try:
            name, _, fields = (task / "stat").read_text().rpartition(") ")
        except OSError:  # another thread has ended meanwhile: the compilers are counted all the same
            continue
        if name.partition("(")[2].startswith(_COMPILERS):
            total += sum(map(int, fields.split()[11:13])) / _TICK
    return total


def _kind(command: bytes, process: Path) -> str:
    if b"valkey" in command:
        return "server"
    if b"--role" in command:
        return "load"
    if command.partition(b"\0")[0].endswith(b"java"):
        return "JVM"
    if b"pyspark" in command:
        return "Python workers"
    return "driver" if process.name == str(os.getpid()) else "others"


class Profile:
    """Prints CPU and wall-clock seconds of a block.

    Args:
        title: The name of the block.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        #: Wall-clock seconds by step; the measured code fills it.
        self.steps: dict[str, float] = {}

    def __enter__(self) -> Profile:
        self._before = cpu_seconds()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        taken = {name: seconds - self._before.get(name, 0) for name, seconds in cpu_seconds().items()}
        print(f"{self._title}:", flush=True)
        for what, seconds in (("seconds", self.steps), ("seconds of CPU", taken)):
            shown = ", ".join(f"{name} {value:.1f}" for name, value in seconds.items() if value >= 0.05)
            if shown:
                print(f"    {what}: {shown}", flush=True)
