"""A server for tests, and how to empty it.

May touch: processes, a temporary folder, and the queues' server.
"""

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
    """A private, empty Valkey for the block; yields its URL, and leaves nothing behind."""
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
    """Removes everything of queues from their server: jobs, settings, events. Only for tests."""

    async def remove() -> None:
        for queue in map(unwrap, queues):
            broker = queue.broker
            pattern = "".join(
                f"\\{letter}" if letter in "*?[]\\^-" else letter for letter in broker.keys.base
            )
            cursor = b"0"
            while True:
                cursor, keys = await broker.caller.command(
                    "SCAN", cursor, "MATCH", f"{pattern}:*", "COUNT", 1000
                )
                if keys:
                    await broker.caller.command("UNLINK", *keys)
                if cursor == b"0":
                    break

    return either(queues[0], remove()) if queues else None
