"""Waits for jobs and events of queues in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from oxcart.broker.cancellations import CancelRequest
from oxcart.broker.keyring import Purpose
from oxcart.broker.memory.store import Store
from oxcart.broker.sealing import Sealer
from oxcart.broker.waiting import Popped
from oxcart.model import payload
from oxcart.model.errors import DecryptionError
from oxcart.model.event import Event

if TYPE_CHECKING:
    from oxcart.broker.memory.broker import MemoryBroker

T = TypeVar("T")


class MemoryEvents:
    """The events of one queue; sealed values are opened if there is a sealer."""

    def __init__(self, store: Store, sealer: Sealer | None = None) -> None:
        self._store = store
        self._sealer = sealer

    async def last_id(self) -> str:
        """Returns the id of the newest event, ``0-0`` for none."""
        with self._store.lock:
            return self._store.events[-1].id if self._store.events else "0-0"

    async def read(self, since: str, block: float) -> list[Event]:
        """Returns the events after an id; waits for one for so many seconds."""
        found = await first_of([self._store], lambda: self._store.events_after(since), block)
        return [self._opened(event) for event in found or []]

    async def backwards(self) -> AsyncIterator[Event]:
        """Yields the events that are still there, newest first."""
        with self._store.lock:
            events = list(self._store.events)
        for event in reversed(events):
            yield self._opened(event)

    def _opened(self, event: Event) -> Event:
        if self._sealer is None or event.job_id is None:
            return event
        sealed: Purpose
        if event.name == "completed":
            sealed, value, attribute = "result", event.return_value, "return_value"
        elif event.name == "progress":
            sealed, value, attribute = "progress", event.data, "data"
        else:
            return event
        try:
            raw = self._sealer.open(sealed, event.job_id, payload.encode(value))
        except DecryptionError:
            return event
        return msgspec.structs.replace(event, **{attribute: payload.decode(raw)})

    async def close(self) -> None:
        """Does nothing: no connection is open."""


class MemoryWait:
    """A worker's wait for jobs of some queues."""

    connections_made = 1

    def __init__(self, brokers: Sequence[MemoryBroker]) -> None:
        self._brokers = brokers

    async def connect(self) -> None:
        """Does nothing: no connection is needed."""

    async def ping(self) -> None:
        """Does nothing: no connection is needed."""

    async def wait(self, queues: Iterable[int], beside: Iterable[bytes], seconds: float) -> Popped | None:
        """Waits until one of some queues has a job that can be claimed."""
        wanted = {index: self._brokers[index].store for index in queues}

        def ready() -> Popped | None:
            for index, store in wanted.items():
                with store.lock:
                    if not store.paused and store.next_ready() is not None:
                        return Popped(b"%d" % index, b"", b"")
            return None

        return await first_of(list(wanted.values()), ready, seconds)

    def queue_of(self, popped: Popped) -> int:
        """Returns the index of the queue that has jobs."""
        return int(popped.key)

    async def put_back(self, popped: Popped) -> None:
        """Does nothing: every worker that waits sees the job."""

    async def close(self) -> None:
        """Does nothing: no connection is open."""


class MemoryInbox:
    """Receives nothing: jobs in memory are not cancelled while they run."""

    async def receive(self, seconds: float) -> tuple[int, CancelRequest] | None:
        """Waits in vain."""
        await asyncio.sleep(seconds)
        return None

    async def close(self) -> None:
        """Does nothing: no connection is open."""


async def first_of(stores: Sequence[Store], look: Callable[[], T | None], seconds: float) -> T | None:
    """Calls ``look`` after each change of the stores until it returns a result, or until the timeout."""
    until = time.monotonic() + seconds
    while True:
        changes = []
        for store in stores:
            with store.lock:
                changes.append(store.changed.next())
        try:
            found, left = look(), until - time.monotonic()
            if found or left <= 0:
                return found or None
            await asyncio.wait(changes, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for store, change in zip(stores, changes, strict=True):
                with store.lock:
                    store.changed.forget(change)
