"""A server for tests, and the cleanup of queues after tests."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Coroutine, Iterator
from typing import Any, overload

from oxcart import sync
from oxcart.broker.embedded import Embedded
from oxcart.queue import Queue
from oxcart.testing._queues import AnyQueue, either, unwrap


@contextlib.contextmanager
def embedded_server() -> Iterator[str]:
    """Starts a private, empty Valkey for the block and yields its URL; the end of the block removes it."""
    folder = tempfile.mkdtemp(prefix="oxcart-test-")
    embedded = Embedded(folder)
    try:
        yield embedded.ensure().url
    finally:
        embedded.release(wait=10)
        shutil.rmtree(folder, ignore_errors=True)


@overload
def reset(*queues: sync.Queue) -> None: ...


@overload
def reset(*queues: Queue) -> Coroutine[Any, Any, None]: ...


def reset(*queues: AnyQueue) -> Coroutine[Any, Any, None] | None:
    """Removes all jobs, settings and events of queues; only for tests."""

    async def remove() -> None:
        for queue in map(unwrap, queues):
            await queue._core.broker.remove_all_keys()

    return either(queues[0], remove()) if queues else None
