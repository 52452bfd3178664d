"""Kills whole sessions of processes: also those that have left the process group of their parent."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

#: Rounds that look for processes which were started while others were killed.
_ROUNDS = 5


def kill_session(leader: int) -> None:
    """Kills the processes of a session, its leader last; outside of Linux only its process group.

    Args:
        leader: The process that began the session. It may have ended.
    """
    for _ in range(_ROUNDS):
        others = [pid for pid in _members(leader) if pid not in (leader, os.getpid())]
        for pid in others:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not others:
            break
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _members(session: int) -> Iterator[int]:
    """Returns the living processes of a session."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    for name in names:
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat") as stat:
            state, _, _, sid = stat.read().rpartition(")")[2].split()[:4]
            if int(sid) == session and state not in "ZX":
                yield int(name)
