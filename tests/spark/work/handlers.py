"""Handlers that executors import."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from oxcart import Cancel, PermanentError, Retry, Snooze, SyncRunningJob, TemporaryError


def mixed(job: SyncRunningJob, do: str) -> Any:
    """Ends an attempt in the way that the payload names."""
    again = job.attempt > 1
    match do:
        case "complete":
            return {"attempt": job.attempt}
        case "fail":
            raise PermanentError("no such user", code="user")
        case "exhaust":
            raise TemporaryError("busy", code="http-503")
        case "retry":
            return "second" if again else Retry(after=0.05, reason="once more")
        case "snooze":
            return "awake" if job.fencing > 1 else Snooze(0.05)
        case "cancel":
            return Cancel("not wanted")
        case "log":
            job.log("a line")
            job.update_progress(50)
            return None
    raise AssertionError(do)


def killed_once(job: SyncRunningJob, marker: str) -> int:
    """Kills its process in the first attempt, as the kernel would for want of memory."""
    path = Path(marker)
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return job.stalls


def slow(job: SyncRunningJob, seconds: float) -> int:
    """Works for longer than its lease lasts."""
    time.sleep(seconds)
    return job.fencing
