"""The systems that are compared, each in an environment of its own; those of the field are in `field`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import redis
from tests import nodes

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
PEERS = Path(__file__).resolve().parent / "peers"


@dataclass(frozen=True)
class System:
    """One system.

    Attributes:
        key: Its name on the command line.
        name: Its name in tables and results.
        start: The command that starts a measured process, to which the task is appended.
        slow_share: Its share of the jobs over the slow link. PyPI bullmq waits for every reply before the
            next command: 20 000 jobs would take it a quarter of an hour.
        brief_share: The same for a quick run without the slow link.
        every: It takes part in every n-th round of a full run. The floors compare our figures with one peer,
            and slow systems would take up most of the time.
        share: Its share of the jobs in every workload.
        unfinished: Counts its unfinished jobs on the server; for BullMQ there is another check.
        parked: The keys of a queue that are put aside until its worker is warm. For systems whose worker is a
            program, because its start would dominate the measurement.
        settings: The settings that differ from its defaults, in words.
    """

    key: str
    name: str
    start: Callable[[], list[str]]
    slow_share: float = 1.0
    brief_share: float = 1.0
    every: int = 1
    share: float = 1.0
    unfinished: Callable[[redis.Redis], int] | None = None
    parked: tuple[str, ...] = ()
    settings: str = ""

    def command(self, task: dict[str, Any]) -> list[str]:
        return [*self.start(), json.dumps(task)]


def _oxcart() -> list[str]:
    return [sys.executable, "-m", "benchmarks.peers.oxcart"]


def _node(version: str) -> list[str]:
    return ["node", str(PEERS / "bullmq_node.js"), str(_node_folder(version))]


@cache
def _node_folder(version: str) -> Path:
    return nodes.installed(version)


def _pypi() -> list[str]:
    return [str(pypi_environment() / "bin" / "python"), str(PEERS / "bullmq_python.py"), "bullmq"]


def _drop_in() -> list[str]:
    """Our drop-in for PyPI bullmq, through its API: the same file as for that.

    It runs with -P, because the file's folder contains an ``oxcart.py``.
    """
    return [sys.executable, "-P", str(PEERS / "bullmq_python.py"), "oxcart.compat.bullmq"]


def pypi_environment() -> Path:
    """The environment of PyPI bullmq."""
    return environment("bullmq")


class CannotInstall(Exception):
    """A peer's environment could not be made here; the message says why."""


@cache
def environment(name: str) -> Path:
    """Makes the environment of a peer, or makes it anew when its pins have changed.

    Concurrent test processes make it once: the others wait for the first.
    """
    folder = BUILD / f"peer-{name}"
    pins = PEERS / f"requirements-{name}.txt"
    mark = folder / ".installed"
    with nodes.locked(f"peer-{name}"):
        if not mark.exists() or mark.read_text() != pins.read_text():
            _must(sys.executable, "-m", "venv", "--clear", str(folder))
            _must(str(folder / "bin" / "python"), "-m", "pip", "install", "--no-deps", "-r", str(pins))
            mark.write_text(pins.read_text())
    return folder


def _must(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotInstall(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")


SYSTEMS = {
    system.key: system
    for system in (
        System("oxcart", "oxcart", _oxcart),
        System("node5", "node-bullmq", lambda: _node("v5")),
        System("node6", "node-bullmq", lambda: _node("v6"), every=3),
        System("dropin", "oxcart-drop-in", _drop_in, every=3),
        System("pypi", "pypi-bullmq", _pypi, slow_share=1 / 40, brief_share=1 / 4, every=3),
    )
}
