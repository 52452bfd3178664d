"""Handlers for child processes; they must be importable."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from oxcart.model.failure import PermanentError
from oxcart.model.job import Job


class Point(msgspec.Struct):
    x: int
    y: int


class Odd(Exception):
    """Cannot be unpickled: its constructor needs more than its args."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


def double(number: int) -> int:
    return number * 2


def add(point: Point) -> int:
    return point.x + point.y


def whoami() -> int:
    return os.getpid()


def logs(what: str) -> str:
    log = logging.getLogger("kitchen")
    log.debug("nobody wants to know")
    log.info("made %s", what, extra={"cups": 2})
    try:
        print(1 / 0)
    except ZeroDivisionError:
        log.exception("spilt", extra={"lock": threading.Lock()})
    return "logged"


def snapshot(job: Job) -> list[Any]:
    return [job.id, job.name, job.data, job.attempt, job.worker_id, job.attempts_started]


def fail(kind: str) -> None:
    if kind == "permanent":
        raise PermanentError("never", code="x")
    if kind == "odd":
        raise Odd("this", "that")
    if kind == "exit":
        sys.exit(3)
    raise ValueError("deep inside")


def crash(how: str) -> None:
    if how == "exit":
        os._exit(7)
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(60)


def unpicklable() -> Any:
    return lambda: None


def loud() -> str:
    print("x" * 100_000)
    print("y" * 100_000, file=sys.stderr)
    return "said"


def hang(file: str) -> None:
    """Starts a child process, writes both process ids, and never ends."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    path = Path(file)
    path.with_suffix(".part").write_text(f"{os.getpid()} {child.pid}")
    path.with_suffix(".part").rename(path)
    time.sleep(600)


class Nest:
    """Handlers need not be at the top of their module."""

    @staticmethod
    def inner() -> str:
        return "found"


def runs_dry() -> int:
    return next(iter(()))


def rests(seconds: float) -> float:
    time.sleep(seconds)
    return seconds
