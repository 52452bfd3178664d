"""The systems that are compared, each in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests import nodes

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
PEERS = Path(__file__).resolve().parent / "peers"


@dataclass(frozen=True)
class System:
    """One system.

    Attributes:
        key: How it is asked for on the command line.
        name: Its name in tables and results.
        start: The command that starts a measured process, to which the task is appended.
    """

    key: str
    name: str
    start: Callable[[], list[str]]

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
    return [str(_pypi_environment() / "bin" / "python"), str(PEERS / "bullmq_python.py")]


@cache
def _pypi_environment() -> Path:
    """Makes the environment of PyPI bullmq, or makes it anew when its pins have changed."""
    folder = BUILD / "peer-bullmq"
    pins = PEERS / "requirements-bullmq.txt"
    mark = folder / ".installed"
    if not mark.exists() or mark.read_text() != pins.read_text():
        quiet = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "-r", str(pins)], check=True, env=quiet)
        mark.write_text(pins.read_text())
    return folder


SYSTEMS = {
    system.key: system
    for system in (
        System("oxcart", "oxcart", _oxcart),
        System("node5", "node-bullmq", lambda: _node("v5")),
        System("node6", "node-bullmq", lambda: _node("v6")),
        System("pypi", "pypi-bullmq", _pypi),
    )
}
