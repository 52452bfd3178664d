"""Ends a worker process, whatever its handlers still do."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import math
import os
import queue
import sys
import threading
import time

from oxcart.cli import exits

log = logging.getLogger("oxcart.work")

#: Seconds that tasks, threads and processes of handlers have to end after the worker.
LEAVING = 1.0


class Ending:
    """Ends the process although parts of the application still run: Python might wait for them forever.

    The worker has returned the jobs of such handlers to the queue, so other workers run them.
    """

    def __init__(self) -> None:
        self._code = exits.FAILED
        self._is_stopped = False
        self._others = frozenset(threading.enumerate())
        self._dues: queue.SimpleQueue[float | None] = queue.SimpleQueue()
        threading.Thread(target=self._watch, name="oxcart-ending", daemon=True).start()

    def within(self, seconds: float) -> None:
        """Ends the process after this many seconds at the latest; the earliest of several calls counts.

        Safe in a signal handler. A thread ends the process, because a handler may block the event loop.
        """
        self._is_stopped = True
        self._dues.put(time.monotonic() + seconds)

    def leave(self, loop: asyncio.AbstractEventLoop, code: int) -> None:
        """Waits a moment for tasks and threads of handlers, and ends the process if some remain.

        After a stop it also bounds the exit of Python, which waits for processes, for example.

        Args:
            loop: The event loop, which no longer runs.
            code: The exit code.
        """
        self._code = code
        if self._is_stopped:
            self.within(3 * LEAVING)
        tasks = loop.run_until_complete(_end_tasks(loop))
        threads = self._end_threads()
        if tasks or threads:
            log.warning(
                "%d tasks and %d threads of handlers have not ended; the process ends without them",
                tasks,
                threads,
            )
            atexit._run_exitfuncs()
            self._exit()

    def close(self) -> None:
        """Cancels the forced end, unless the process was asked to stop."""
        if not self._is_stopped:
            self._dues.put(None)

    def _end_threads(self) -> int:
        """Waits a moment for the threads that keep the process alive; returns how many still run."""
        until = time.monotonic() + LEAVING
        left = [one for one in threading.enumerate() if not one.daemon and one not in self._others]
        for thread in left:
            thread.join(max(0.0, until - time.monotonic()))
        return sum(thread.is_alive() for thread in left)

    def _watch(self) -> None:
        due = math.inf
        while (left := due - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                earlier = self._dues.get(timeout=min(left, threading.TIMEOUT_MAX))
                if earlier is None:
                    return
                due = min(due, earlier)
        log.error("the shutdown time has passed; the process ends although parts of it still run")
        self._exit()

    def _exit(self) -> None:
        if (processes := sys.modules.get("multiprocessing")) is not None:
            for child in processes.active_children():  # Python itself would wait for them
                child.kill()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(self._code)


async def _end_tasks(loop: asyncio.AbstractEventLoop) -> int:
    """Cancels all tasks and lets the threads of ``asyncio.to_thread`` end; returns how many did not."""
    tasks = {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
    for task in tasks:
        task.cancel()
    # Not cancelled: it would wait for its threads all the same.
    tasks.add(loop.create_task(loop.shutdown_default_executor()))
    _, deaf = await asyncio.wait(tasks, timeout=LEAVING)
    return len(deaf)
