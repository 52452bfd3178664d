"""Builders of one lake take turns, so that a rebuild or an erasure ends beside a live pipeline.

Without turns two builders of a day conflict, and one of them has worked for nothing: beside a pipeline that
builds all the time a longer build would never win. A turn is a lock on a file of the lake. The system frees
it when its process ends. Builders wait in line at a second file, so that one that builds again at once does
not overtake the others.

Where the file system has no locks, builders do not wait; publishing still refuses a change that conflicts.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from oxcart.spark.lake.versions import Lake, explained

#: The file that is locked by the builder at work, and the file that is locked by the next one.
BUSY, NEXT = "_build.busy", "_build.next"
#: Seconds between attempts to get a lock.
_PAUSE = 0.05
#: Errors of file systems without locks.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})


def never() -> bool:
    """Returns False: work that is not stopped from outside."""
    return False


class Turn:
    """The right to build, which one builder of a lake has at a time.

    Args:
        lake: The lake.
    """

    def __init__(self, lake: Lake) -> None:
        self._root = lake.root
        self._mine = threading.RLock()
        self._depth = 0

    @contextlib.contextmanager
    def taken(self, stop: Callable[[], bool] = never) -> Iterator[bool]:
        """Waits for the turn and has it until the block ends; a thread that has it may take it again.

        Args:
            stop: Ends the wait when it returns True.

        Yields:
            Whether the turn is taken; False if ``stop`` ended the wait.
        """
        with self._mine, contextlib.ExitStack() as held:
            got = self._depth > 0 or self._wait(held, stop)
            self._depth += got
            try:
                yield got
            finally:
                self._depth -= got

    def _wait(self, held: contextlib.ExitStack, stop: Callable[[], bool]) -> bool:
        with explained(self._root):
            self._root.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as line:
            return _locked(self._root / NEXT, line, stop) and _locked(self._root / BUSY, held, stop)


def _locked(path: Path, held: contextlib.ExitStack, stop: Callable[[], bool]) -> bool:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    held.callback(os.close, file)  # closing it frees the lock
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if stop():
                return False
            time.sleep(_PAUSE)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return True
            raise
