"""The application of the rehearsal: one queue whose handler writes down every run."""

from __future__ import annotations

import os
import time
from pathlib import Path

from oxcart import Queue, SyncRunningJob

orders = Queue("orders", attempts=3)
_DIARY = Path(os.environ.get("REHEARSAL_DIARY", os.devnull))


@orders.job
def charge(job: SyncRunningJob, number: int, takes: float = 0.02) -> int:
    """Takes its time, then writes a line of its own."""
    time.sleep(takes)
    with _DIARY.open("a") as diary:  # one short line is written whole
        diary.write(f"{job.id}\n")
    return number
