"""What happens in a queue: an async iterator over its event stream, and results built on it.

A position is the id of the last event seen; whoever keeps it can go on from there, as far as the stream
reaches back (about 10 000 events unless a pipeline keeps more).

May touch: the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from typing import Any

from oxcart.broker.caller import PASSING, script_error
from oxcart.broker.factory import make_broker
from oxcart.broker.link import Link, LinkClosed, ReplyError
from oxcart.broker.port import ServedBroker
from oxcart.model import payload
from oxcart.model.errors import (
    BrokerUnavailable,
    JobFailed,
    JobNotFound,
    PayloadError,
    ResultTimeout,
)
from oxcart.model.event import Event

log = logging.getLogger("oxcart.events")

#: Longest single block of a read, in seconds.
BLOCK = 10.0
PAGE = 1000
#: Seconds after which a job that is waited for is looked at again.
LOOK_AGAIN = 30.0
#: The same where peers tell of nothing.
LOOK_OFTEN = 1.0

#: Answers to a blocked read after which it is sent again: the stream is elsewhere, or not there for now.
_AGAIN = PASSING | {"ASK", "MOVED", "UNBLOCKED"}


class QueueEvents:
    """The events of a queue, one after another, for ever.

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
        self._link: Link | None = None
        #: The id of the last event read; give it as ``since`` to go on from here.
        self.position = since

    async def __aenter__(self) -> QueueEvents:
        await self.ready()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def ready(self) -> None:
        """Fixes the position: every event after this call will be seen."""
        if self.position == "$":
            self.position = await last_event_id(self._broker)

    async def close(self) -> None:
        """Closes the connection."""
        if self._link is not None:
            await self._link.close()
            self._link = None
        await self._broker.close()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            for event in await self._peek():
                # One by one: whoever keeps the position, or leaves, in the midst of a page misses nothing.
                self.position = event.id
                if self._wants(event):
                    yield event

    async def read(self, block: float = BLOCK) -> list[Event]:
        """The next events; waits for one for so many seconds, then returns an empty list."""
        events = await self._peek(block)
        if events:
            self.position = events[-1].id
        return [event for event in events if self._wants(event)]

    async def read_entries(self, block: float = BLOCK) -> list[tuple[str, dict[str, str]]]:
        """As ``read``, with events of every name as they are stored: their ids, and their fields as text."""
        await self.ready()
        entries = [
            (entry_id.decode(), {_plain(name): _plain(value) for name, value in _pairs(fields).items()})
            for entry_id, fields in await self._entries(block)
        ]
        if entries:
            self.position = entries[-1][0]
        return entries

    async def _peek(self, block: float = BLOCK) -> list[Event]:
        """As ``read``, but events of every name, and the position stays."""
        await self.ready()
        entries = await self._entries(block)
        return [self._event(entry_id, fields) for entry_id, fields in entries]

    def _event(self, entry_id: bytes, flat: list[bytes]) -> Event:
        """An event with its sealed values opened; one that does not open stays as it is."""
        fields = _pairs(flat)
        sealer, job_id = self._broker.sealer, fields.get(b"jobId")
        if sealer is not None and job_id is not None:
            fields = sealer.open_event(job_id.decode("utf-8", "surrogateescape"), fields)
        return Event.parse(entry_id, fields, self._broker.queue)

    def _wants(self, event: Event) -> bool:
        """Whether an event is of the names that were asked for."""
        return self._names is None or event.name in self._names

    async def _entries(self, block: float) -> list[Any]:
        link = self._link
        if link is None:
            name = self._broker.keys.client_name(":qe")
            link = self._link = self._broker.server.link(self._broker.slot, client_name=name)
        attempt = 0
        while True:
            try:
                answer = await link.call(
                    *("XREAD", "COUNT", PAGE, "BLOCK", max(1, int(block * 1000))),
                    *("STREAMS", self._broker.keys.events(), self.position),
                    timeout=block + 5,
                )
            except LinkClosed:
                raise
            except (BrokerUnavailable, ReplyError) as error:
                if isinstance(error, ReplyError):
                    if error.code not in _AGAIN:
                        raise script_error("reading events", str(error)) from error
                    link.drop("the stream is elsewhere")
                self._broker.server.forget_slots()
                attempt += 1
                pause = self._broker.caller.reconnect.pause(attempt, holding=True)
                if attempt == 1:
                    log.warning("events of %s: %s; trying again", self._broker.queue, error)
                await asyncio.sleep(pause)
            else:
                return answer[0][1] if answer else []


class Results:
    """Waits for the ends of jobs: one reader for all of a queue's waiting callers."""

    def __init__(self, broker: ServedBroker) -> None:
        self._broker = broker
        self._waiting: dict[str, list[asyncio.Future[Event]]] = {}
        self._reader: asyncio.Task[None] | None = None
        self._reading = asyncio.Event()

    async def wait(self, job_id: str, timeout: float | None) -> Any:
        """The job's result, once it has one.

        Raises:
            JobFailed: It failed for good.
            ResultTimeout: It has not ended in time.
            JobNotFound: It is gone, and no event tells how it ended.
            DecryptionError: The queue seals results, and this one does not open.
        """
        future: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job_id, []).append(future)
        try:
            async with asyncio.timeout(timeout):
                # Listen first, then look: an end in between is seen by one or the other.
                await self._listen()
                while True:
                    found, value = await self._look(job_id)
                    if found:
                        return value
                    # Now and then look again: events are trimmed, so one may be gone before it is read.
                    again = LOOK_AGAIN if self._broker.capabilities.wakes else LOOK_OFTEN
                    await asyncio.wait((future,), timeout=again)
                    if future.done():
                        return await self._told(future.result())
        except TimeoutError:
            raise ResultTimeout(f"job {job_id} has not ended within {timeout:g} s") from None
        finally:
            waiting = self._waiting.get(job_id, [])
            if future in waiting:
                waiting.remove(future)
            if not waiting:
                self._waiting.pop(job_id, None)

    async def close(self) -> None:
        """Stops listening."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
            self._reader = None

    async def _look(self, job_id: str) -> tuple[bool, Any]:
        ended = await self._broker.ended(job_id)
        if ended.finished:
            if await self._broker.states([job_id]) == ["failed"]:
                job = (await self._broker.get([job_id], lenient=True))[0]
                if job is not None:
                    raise JobFailed(
                        job_id, job.failed_reason or "", job.stacktrace, job.extra.get("ox:category")
                    )
            elif ended.value is not None:
                return True, self._opened(job_id, ended.value)
        if not ended.known:
            event = await self._look_back(job_id)
            if event is None:
                raise JobNotFound(job_id)
            return True, await self._told(event)
        return False, None

    async def _look_back(self, job_id: str) -> Event | None:
        """The end of a job that is gone, from the events that are still there, newest first."""
        end = "+"
        while True:
            page = await self._broker.caller.command(
                "XREVRANGE", self._broker.keys.events(), end, "-", "COUNT", PAGE
            )
            for entry_id, fields in page:
                event = Event.parse(entry_id, _pairs(fields), self._broker.queue)
                if event.job_id == job_id and event.name in ("completed", "failed"):
                    return event
            if len(page) < PAGE:
                return None
            end = "(" + page[-1][0].decode()

    async def _told(self, event: Event) -> Any:
        if event.name == "completed":
            if self._broker.sealer is None:
                return event.return_value
            return self._opened(event.job_id or "", payload.encode(event.return_value))
        job = (await self._broker.get([event.job_id or ""], lenient=True))[0]
        raise JobFailed(
            event.job_id or "",
            event.failed_reason or "",
            job.stacktrace if job else [],
            job.extra.get("ox:category") if job else None,
        )

    def _opened(self, job_id: str, raw: bytes) -> Any:
        sealer = self._broker.sealer
        return _value(raw if sealer is None else sealer.open("result", job_id, raw))

    async def _listen(self) -> None:
        if self._reader is None or self._reader.done():
            self._reading.clear()
            self._reader = asyncio.create_task(self._read(), name="oxcart-results")
            self._reader.add_done_callback(self._reader_ended)
        reading = asyncio.ensure_future(self._reading.wait())
        try:
            await asyncio.wait((reading, self._reader), return_when=asyncio.FIRST_COMPLETED)
        finally:
            reading.cancel()

    def _reader_ended(self, reader: asyncio.Task[None]) -> None:
        """Tells those who wait: nobody listens for them any more."""
        error = None if reader.cancelled() else reader.exception()
        for futures in self._waiting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(error or LinkClosed("the queue was closed"))
                    future.exception()  # who has seen the job's end otherwise does not ask

    async def _read(self) -> None:
        broker = make_broker(
            self._broker.capabilities.protocol,
            self._broker.server,
            self._broker.queue,
            prefix=self._broker.keys.prefix,
            tagged=self._broker.keys.tagged,
        )
        async with QueueEvents(broker, names=("completed", "failed")) as events:
            self._reading.set()
            async for event in events:
                for future in self._waiting.pop(event.job_id or "", []):
                    if not future.done():
                        future.set_result(event)


async def last_event_id(broker: ServedBroker) -> str:
    """The id of the newest event, ``0-0`` for none."""
    newest = await broker.caller.command("XREVRANGE", broker.keys.events(), "+", "-", "COUNT", 1)
    return newest[0][0].decode() if newest else "0-0"


def _pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    pairs = iter(flat)
    return dict(zip(pairs, pairs, strict=True))


def _plain(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _value(raw: bytes) -> Any:
    try:
        return payload.decode(raw)
    except PayloadError:
        return _plain(raw)
