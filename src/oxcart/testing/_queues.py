"""Queues of ``oxcart`` and of ``oxcart.sync``, for tools that take either."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from oxcart import sync
from oxcart.queue import Queue
from oxcart.testing._driver import Mode

T = TypeVar("T")

AnyQueue = Queue | sync.Queue


def unwrap(queue: AnyQueue) -> Queue:
    """Returns the asynchronous queue."""
    return queue.asynchronous if isinstance(queue, sync.Queue) else queue


def either(queue: AnyQueue, doing: Coroutine[Any, Any, T]) -> T | Coroutine[Any, Any, T]:
    """Returns the result for a queue of ``oxcart.sync``, otherwise the coroutine."""
    __tracebackhide__ = True  # pytest shows the line of the test
    if not isinstance(queue, sync.Queue):
        return doing
    try:
        return queue.run(doing)
    except AssertionError as error:
        raise error.with_traceback(None) from None


def mode_of(queue: Queue) -> Mode | None:
    """Returns the mode that runs the queue's jobs in memory, if it is inline or manual."""
    source = queue._core.brokers
    return source if isinstance(source, Mode) else None
