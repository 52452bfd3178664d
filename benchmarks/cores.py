"""A core of the machine for the server, and the others for whoever talks to it.

Otherwise the system's scheduler decides comparisons: where it puts a server and its one busy client on the
same core, a job takes the sum of what both need, and elsewhere the larger of the two. In production the
server has a machine or a core of its own. Touches the affinity of the server and of this process; what this
process starts inherits it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def apart(server: int) -> Iterator[bool]:
    """Keeps a server (its pid) and this process, with all it starts from now on, on different cores.

    Yields:
        Whether that could be had: it takes two cores, and a system that can be asked.
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
    """What the host of a virtual machine took of this machine's cores since its start, as far as it tells."""
    try:
        with open("/proc/stat") as stat:
            return int(stat.readline().split()[8]) * 1000 / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0
