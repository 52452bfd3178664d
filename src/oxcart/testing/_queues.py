"""Queues of both kinds, where a tool takes either."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from oxcart import sync
from oxcart.queue import Queue
from oxcart.testing._memory import MemoryBroker, StandIn

T = TypeVar("T")

AnyQueue = Queue | sync.Queue


def unwrap(queue: AnyQueue) -> Queue:
    """The asynchronous queue."""
    return queue.asynchronous if isinstance(queue, sync.Queue) else queue


def either(queue: AnyQueue, doing: Coroutine[Any, Any, T]) -> T | Coroutine[Any, Any, T]:
    """For a queue of ``oxcart.sync`` the answer, otherwise something to await."""
    return queue.run(doing) if isinstance(queue, sync.Queue) else doing


def memory_of(queue: Queue) -> MemoryBroker | None:
    """What stands in for the queue's server, if it is inline or manual."""
    bound: object = queue._bind()
    return bound.broker if isinstance(bound, StandIn) else None
