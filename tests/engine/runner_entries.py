"""A runner for tests, and the function that makes its calls in the handler's process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from oxcart.engine.process_child import Call
from oxcart.engine.runners import Entry, Prepared
from oxcart.engine.sync_running import SyncRunningJob
from oxcart.model.errors import ValidationError

#: Starts a process that leaves the group of its parent, as Spark's daemons do, and tells its id.
_DEFECTOR = "import os, sys, time; os.setpgid(0, 0); print(os.getpid(), flush=True); time.sleep(600)"


class TestRunner:
    """Fills the parameter ``lamp``, and multiplies results by its setting."""

    __test__ = False
    settings = frozenset({"times"})
    fills = frozenset({"lamp"})
    face = SyncRunningJob

    def prepare(self, target: Callable[..., Any] | str | Path, settings: Mapping[str, Any]) -> Prepared:
        if not callable(target):
            raise ValidationError("target", "a function", target)
        entry = Entry(("tests.engine.runner_entries", "enter"), settings.get("times", 1), grace=0.3)
        return Prepared(target, entry)


def enter(call: Call) -> Any:
    face = SyncRunningJob(call.job, call.link)
    call.place.job = face
    arguments = dict(call.arguments, lamp="lit")
    if call.takes_job is not None:
        arguments[call.takes_job] = face
    return call.function(**arguments) * call.settings


def number(lamp: str, n: int) -> int:
    assert lamp == "lit"
    return n


def process(lamp: str) -> list[int]:
    return [os.getpid()]


def deaf(job: SyncRunningJob, lamp: str, note: str) -> None:
    """Ignores every request to stop, and has a child outside of its process group."""
    child = subprocess.Popen([sys.executable, "-c", _DEFECTOR], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    Path(note).write_text(f"{os.getpid()} {child.stdout.readline().strip()}")
    time.sleep(600)


def polite(job: SyncRunningJob, lamp: str, note: str) -> None:
    """Stops when it is asked to, and tells so."""
    Path(note).write_text("")
    Path(note + ".reason").write_text(job.cancelled())
    job.raise_if_cancelled()
