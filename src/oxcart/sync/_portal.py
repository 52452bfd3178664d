"""The way from code that blocks to code that does not: one thread per process with an event loop.

Started by the first call, again in a forked child, ended at exit.

May touch: a thread, and the connections of queues that are closed.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib
import os
import threading
import weakref
from collections.abc import Coroutine
from typing import Any, TypeVar

from oxcart.queue import Queue

# What the background thread would import by and by. A process that is forked while it does so would wait
# for ever for the import to end, in a thread that the child does not have.
for _module in ("concurrent.futures.thread", "encodings.idna", "importlib.readers"):
    with contextlib.suppress(ImportError):  # another version of Python may have it elsewhere
        importlib.import_module(_module)

T = TypeVar("T")

#: Seconds that the end of the process waits for connections to be closed.
_LAST_WAIT = 2.0


class Portal:
    """The background thread and its event loop: the way from code that blocks to code that does not."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.queues: weakref.WeakSet[Queue] = weakref.WeakSet()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="oxcart-sync", daemon=True)
        self._thread.start()

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        """Does something in the loop and waits for it."""
        if threading.current_thread() is self._thread:
            doing.close()
            raise RuntimeError(
                "oxcart.sync was called by code that runs in its own event loop, which would wait for "
                "itself; await the queue's `asynchronous` there"
            )
        future = asyncio.run_coroutine_threadsafe(doing, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C: the caller does not wait any more
            raise

    def close_soon(self, queue: Queue) -> None:
        """Closes a queue's connection without waiting for it; may be called by the garbage collector."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(lambda: self._loop.create_task(queue.close()))

    def stop(self) -> None:
        """Closes all connections and ends the thread."""
        closing = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        with contextlib.suppress(Exception):
            closing.result(_LAST_WAIT)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LAST_WAIT)

    async def _close(self) -> None:
        for queue in list(self.queues):
            await queue.close()
        left = asyncio.all_tasks(self._loop) - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()


_current: Portal | None = None
_lock = threading.Lock()

#: Of the processes this one was forked from. Kept for ever: an event loop that is cleaned up in the child
#: would reach into the parent's, because both share one epoll instance.
_of_parents: list[Portal] = []


def is_running() -> bool:
    """Whether this process has a portal."""
    return _current is not None and _current.pid == os.getpid()


def portal() -> Portal:
    """The portal of this process; started by the first call."""
    global _current
    current = _current
    if current is not None and current.pid == os.getpid():
        return current
    with _lock:
        if _current is not None and _current.pid != os.getpid():
            _of_parents.append(_current)  # a fork that Python was not told of
            _current = None
        if _current is None:
            _current = Portal()
        return _current


def close_soon(queue: Queue) -> None:
    """Closes the connection of a queue that nobody holds any more."""
    if _current is not None and is_running():
        _current.close_soon(queue)


def _forget_in_child() -> None:
    global _current, _lock
    _lock = threading.Lock()
    if _current is not None:
        _of_parents.append(_current)
        _current = None


def _stop_at_exit() -> None:
    if _current is not None and is_running():
        _current.stop()


atexit.register(_stop_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
