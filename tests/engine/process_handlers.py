"""Handlers for child processes; they must be importable."""

from __future__ import annotations

import contextvars
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from oxcart import Flow, Queue, SyncRunningJob, WaitForChildren, current_job
from oxcart.model.failure import JobCancelled, PermanentError
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


def snapshot(job: SyncRunningJob) -> list[Any]:
    value = job.snapshot()
    assert isinstance(value, Job)
    return [value.id, value.name, value.data, value.attempt, value.worker_id, value.attempts_started]


#: Middleware of tests sets these.
tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")
secret: contextvars.ContextVar[Any] = contextvars.ContextVar("secret", default=None)


class Nested:
    """A variable that is no attribute of a module."""

    hidden: contextvars.ContextVar[str] = contextvars.ContextVar("hidden", default="unset")


def reports(job: SyncRunningJob) -> list[Any]:
    """Uses the whole face of a job."""
    assert current_job() is job
    job.log("one", "two")
    job.update_progress(50)
    job.checkpoint({"row": 7})
    job.update_data({"to": "bob"})
    job.limit_to("30s")
    left = (job.deadline or 0) - time.monotonic()
    return [
        job.checkpointed,
        job.data,
        [job.attempt, job.fencing, job.fence > 0, job.is_cancelled, job.cancel_reason],
        0 < left <= 30,
        job.server_ms() > 0,
        [job.correlation_id, job.tags, job.options.attempts],
    ]


def grows(job: SyncRunningJob) -> Any:
    """Adds children to its job, and waits for them."""
    if not job.dependency_counts().total:
        away = Queue(job.queue, url="redis://127.0.0.1:1")  # never connected: the worker adds them
        job.add_children(Flow(away, "double", {"number": 4}), Flow(away, "double", {"number": 5}))
        return WaitForChildren()
    return sorted(job.children_values().values())


def errs(job: SyncRunningJob) -> list[str]:
    """Collects the errors of calls."""
    found = []
    calls: list[Callable[[], Any]] = [
        lambda: job.update_progress(101),
        lambda: job.limit_to("soon"),
        lambda: job.checkpoint(float("nan")),
        lambda: job.checkpoint(threading.Lock()),
        lambda: job.state,
    ]
    for call in calls:
        try:
            call()
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def context(job: SyncRunningJob) -> list[Any]:
    logging.getLogger("kitchen").info("looked")
    found = [tenant.get(), secret.get(), Nested.hidden.get(), job.state]
    tenant.set("changed")  # must not leak into the next job
    return found


def calls_at_once(job: SyncRunningJob) -> int:
    threads = [threading.Thread(target=job.log, args=(str(number),)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(threads)


def waits(job: SyncRunningJob, file: str) -> list[Any]:
    """Writes its process id, and waits until its attempt should stop."""
    Path(file).write_text(str(os.getpid()))
    reason = job.cancelled()
    try:
        job.raise_if_cancelled()
    except JobCancelled as error:
        return [reason, job.is_cancelled, str(error)]
    return []


_kept: list[SyncRunningJob] = []


def keeps(job: SyncRunningJob) -> None:
    _kept.append(job)


def uses_the_kept() -> str:
    try:
        _kept[-1].log("too late")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def whispers() -> str:
    logging.getLogger("kitchen.low").debug("psst")
    logging.getLogger("other").debug("not wanted")
    return "done"


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


def logs_and_dies(job: SyncRunningJob) -> None:
    for number in range(20):
        threading.Thread(target=job.log, args=(str(number),), daemon=True).start()
    os.kill(os.getpid(), signal.SIGKILL)


def steps(job: SyncRunningJob, file: str) -> list[Any]:
    def note(number: int) -> int:
        with Path(file).open("a") as effects:
            effects.write(f"{number}\n")
        return number

    first = job.step("first", note, 1)
    job.sleep(0.001)
    return [first, job.step("second", note, 2), job.wait_signal("go", "1h")]
