"""Reserves a core for the server, and the others for its clients.

Otherwise the system's scheduler decides comparisons: if a server and its busy client share a core, a job
takes the sum of both times, else the larger of the two. In production the server has its own machine or core.
This sets the CPU affinity of the server and of this process; processes that it starts inherit it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def apart(server: int) -> Iterator[bool]:
    """Keeps a server (by pid) and this process, with the processes it starts, on different cores.

    Yields:
        Whether it succeeded: it needs two cores and a system with CPU affinity.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield False
        return
    mine = os.sched_getaffinity(0)
    if len(mine) < 2:
        yield False
        return
    first = min(mine)
    os.sched_setaffinity(server, {first})
    os.sched_setaffinity(0, mine - {first})
    try:
        yield True
    finally:
        os.sched_setaffinity(0, mine)


def stolen_ms() -> float:
    """Returns the CPU time in ms that a virtual machine's host took, as far as it reports it."""
    try:
        with open("/proc/stat") as stat:
            return int(stat.readline().split()[8]) * 1000 / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0
