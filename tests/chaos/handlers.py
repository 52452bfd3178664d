"""Handlers that run in a process, which imports them by name."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path


def with_a_child(folder: str) -> None:
    """Starts a child and never ends; writes both process ids first."""
    child = subprocess.Popen(["sleep", "3600"])
    Path(folder, "pids").write_text(f"{os.getpid()} {child.pid}")
    time.sleep(3600)


def crash() -> None:
    """Ends its process, as a bug in C code would."""
    os.abort()


def pid() -> int:
    return os.getpid()
