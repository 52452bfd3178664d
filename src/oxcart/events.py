"""The event stream of a queue as an async iterator, and the wait for results that is built on it.

A position is the id of the last event seen. A reader that stores it can continue from there, as far as the
stream reaches back (about 10 000 events unless a pipeline keeps more).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

from oxcart.broker.port import Ended, ServedBroker
from oxcart.broker.port.parts import Bulk
from oxcart.broker.port.streams import EventStream
from oxcart.broker.progress import OnProgress, silent
from oxcart.model import payload
from oxcart.model.errors import (
    BrokerUnavailable,
    JobFailed,
    JobNotFound,
    OxcartError,
    PayloadError,
    ResultTimeout,
    ValidationError,
)
from oxcart.model.event import EVENT_NAMES, Event

if TYPE_CHECKING:
    from oxcart.queue import Queue

log = logging.getLogger("oxcart.events")

#: Longest single block of a read, in seconds.
BLOCK = 10.0
#: Seconds after which an awaited job is read again.
LOOK_AGAIN = 30.0
#: The same if peers write no events.
LOOK_OFTEN = 1.0


class QueueEvents:
    """The events of a queue, one after another, without an end.

    Args:
        broker: The queue.
        since: The id of the last event already seen; ``$`` for only new ones, ``0`` from the oldest.
        names: Only events of these names.

    Example:
        >>> async for event in queue.events(): print(event.name, event.job_id)  # doctest: +SKIP
    """

    def __init__(self, broker: ServedBroker, since: str = "$", names: Iterable[str] | None = None) -> None:
        self._broker = broker
        self._names = None if names is None else frozenset(names)
        reader = broker.open_events(unseals=True)
        if reader is None:
            raise OxcartError(f"queue {broker.queue!r} has no server, so it has no events")
        self._reader = reader
        #: The id of the last event read; pass it as ``since`` to continue from here.
        self.position = since

    async def __aenter__(self) -> QueueEvents:
        await self.ready()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def ready(self) -> None:
        """Fixes the position: every event after this call will be seen."""
        if self.position == "$":
            self.position = await self._reader.last_id()

    async def close(self) -> None:
        """Closes the connection."""
        await self._reader.close()
        await self._broker.close()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            for event in await self._peek():
                # One by one: a reader that stores the position, or leaves, within a page misses nothing.
                self.position = event.id
                if self._wants(event):
                    yield event

    async def read(self, block: float = BLOCK) -> list[Event]:
        """Returns the next events; waits for one for so many seconds, then returns an empty list."""
        events = await self._peek(block)
        if events:
            self.position = events[-1].id
        return [event for event in events if self._wants(event)]

    async def _peek(self, block: float = BLOCK) -> list[Event]:
        """As ``read``, but returns events of every name, and does not move the position."""
        await self.ready()
        return await self._reader.read(self.position, block)

    def _wants(self, event: Event) -> bool:
        """Returns whether an event has one of the requested names."""
        return self._names is None or event.name in self._names


class Events:
    """The event stream of a queue.

    Calling it reads the stream: ``async for event in queue.events(): …``.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def __call__(self, since: str = "$", names: Iterable[str] | None = None) -> QueueEvents:
        """Returns an async iterator over the events.

        Args:
            since: The id of the last event already seen; ``$`` for only new ones, ``0`` from the oldest.
            names: Only events of these names.
        """
        return QueueEvents(self._queue._core.open_broker(), since, names)

    async def publish(self, event: str, /, keep_events: int | None = None, **fields: Any) -> str:
        """Adds an event of your own to the stream; returns its id.

        Readers see it among the others, in Python as in Node. Text stays as it is, and every other value is
        written as JSON.

        Args:
            event: Its name; none of the queue's own.
            keep_events: About how many events of the queue stay; the queue's own setting by default.
            **fields: The event's fields.

        Raises:
            ValidationError: The name is taken, or a field cannot be written as JSON.
        """
        if not event or not isinstance(event, str):
            raise ValidationError("event", "a name", event)
        if event in EVENT_NAMES:
            raise ValidationError("event", "a name that the queue itself does not use", event)
        if "event" in fields:
            raise ValidationError("event", "given once", fields["event"])
        if keep_events is not None and (type(keep_events) is not int or keep_events < 1):
            raise ValidationError("keep_events", "an integer, at least 1", keep_events)
        texts = {
            name: value if isinstance(value, str) else payload.encode(value, field=name)
            for name, value in fields.items()
        }
        return await self._bulk.publish(event, texts, keep_events)

    async def trim(self, keep: int, *, progress: OnProgress | None = None) -> int:
        """Drops the oldest events; returns how many.

        Args:
            keep: About how many stay. The stream is cut by whole nodes, so up to a hundred more may.
            progress: Called after every step.
        """
        if type(keep) is not int or keep < 0:
            raise ValidationError("keep", "an integer, at least 0", keep)
        return await self._bulk.trim_events(keep, progress=progress or silent)

    @property
    def _bulk(self) -> Bulk:
        core = self._queue._core
        return core.part(core.broker.bulk, "bulk")


class Results:
    """Waits for the ends of jobs: one reader for all of a queue's waiting callers."""

    def __init__(self, broker: ServedBroker) -> None:
        self._broker = broker
        self._waiting: dict[str, list[asyncio.Future[Event]]] = {}
        self._reader: asyncio.Task[None] | None = None
        self._reading = asyncio.Event()

    async def wait(self, job_id: str, timeout: float | None) -> Any:
        """Returns the job's result, once it has one.

        Raises:
            JobFailed: It failed for good.
            ResultTimeout: It has not ended in time.
            JobNotFound: It is gone, and no event contains its end.
            DecryptionError: The queue seals results, and this one does not open.
        """
        future = self._expect(job_id)
        try:
            async with asyncio.timeout(timeout):
                # Listen first, then read: one of the two sees an end in between.
                await self._listen()
                while True:
                    ended = await self._broker.ended(job_id)
                    found, value = await self._look(job_id, ended)
                    if found:
                        return value
                    # Read again now and then: events are trimmed, so one may be gone before it is read.
                    again = LOOK_AGAIN if self._broker.capabilities.can("wakes") else LOOK_OFTEN
                    await asyncio.wait((future,), timeout=again)
                    if future.done():
                        event = future.result()
                        future = self._expect(job_id)
                        if ended.started:
                            continue  # it may be the end of a run before a retry, read late
                        found, value = await self._read_end(event)
                        if found:
                            return value
        except ResultTimeout:
            raise  # from a broker that knows that nothing will run the job
        except TimeoutError:
            raise ResultTimeout(f"job {job_id} has not ended within {timeout:g} s") from None
        finally:
            waiting = self._waiting.get(job_id, [])
            if future in waiting:
                waiting.remove(future)
            if not waiting:
                self._waiting.pop(job_id, None)

    def _expect(self, job_id: str) -> asyncio.Future[Event]:
        future: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job_id, []).append(future)
        return future

    async def close(self) -> None:
        """Stops listening."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
            self._reader = None

    async def _look(self, job_id: str, ended: Ended) -> tuple[bool, Any]:
        if ended.finished:
            if await self._broker.states([job_id]) == ["failed"]:
                job = (await self._broker.get([job_id], lenient=True))[0]
                if job is not None:
                    raise JobFailed(job_id, job.failed_reason or "", job.stacktrace, job.category)
            elif ended.value is not None:
                return True, self._opened(job_id, ended.value)
        if not ended.known:
            event = await self._look_back(job_id)
            if event is None:
                raise JobNotFound(job_id)
            return await self._read_end(event)
        return False, None

    async def _look_back(self, job_id: str) -> Event | None:
        """Returns the end of a job that is gone, from the remaining events, newest first."""
        if (reader := self._broker.open_events()) is None:
            return None
        async for event in reader.backwards():
            if event.job_id == job_id and event.name in ("completed", "failed"):
                return event
        return None

    async def _read_end(self, event: Event) -> tuple[bool, Any]:
        """Returns whether the job has ended, and its result."""
        if event.name == "completed":
            if self._broker.sealer is None:
                return True, event.return_value
            return True, self._opened(event.job_id or "", payload.encode(event.return_value))
        job = (await self._broker.get([event.job_id or ""], lenient=True))[0]
        if job is not None and job.finished_on is None:
            return False, None  # it failed before the wait began and was retried since
        raise JobFailed(
            event.job_id or "",
            event.failed_reason or "",
            job.stacktrace if job else [],
            job.category if job else None,
        )

    def _opened(self, job_id: str, raw: bytes) -> Any:
        sealer = self._broker.sealer
        return _value(raw if sealer is None else sealer.open("result", job_id, raw))

    async def _listen(self) -> None:
        if self._reader is None or self._reader.done():
            if (stream := self._broker.open_events()) is None:
                return  # callers only read the job
            self._reading.clear()
            self._reader = asyncio.create_task(self._read(stream), name="oxcart-results")
            self._reader.add_done_callback(self._reader_ended)
        reading = asyncio.ensure_future(self._reading.wait())
        try:
            await asyncio.wait((reading, self._reader), return_when=asyncio.FIRST_COMPLETED)
        finally:
            reading.cancel()

    def _reader_ended(self, reader: asyncio.Task[None]) -> None:
        """Wakes waiting callers, because the reader has ended."""
        error = None if reader.cancelled() else reader.exception()
        for futures in self._waiting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(error or BrokerUnavailable("the queue was closed"))
                    future.exception()  # a caller that learned of the job's end otherwise does not read it

    async def _read(self, reader: EventStream) -> None:
        try:
            position = await reader.last_id()
            self._reading.set()
            while True:
                for event in await reader.read(position, BLOCK):
                    position = event.id
                    if event.name not in ("completed", "failed"):
                        continue
                    for future in self._waiting.pop(event.job_id or "", []):
                        if not future.done():
                            future.set_result(event)
        finally:
            await reader.close()


def _value(raw: bytes) -> Any:
    try:
        return payload.decode(raw)
    except PayloadError:
        return raw.decode("utf-8", "replace")
