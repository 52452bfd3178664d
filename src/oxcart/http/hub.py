"""The event hub: one reader per queue, shared by all listeners of the event stream.

Every message has a position: the last event read of each queue. A listener that reconnects with it reads
what it missed from the queues' own streams, up to where the hub is, and then listens to the hub.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Container, Iterable, Mapping, Sequence
from urllib.parse import quote, unquote

import msgspec

from oxcart.broker.port.streams import LanePlace
from oxcart.events import QueueEvents
from oxcart.http.errors import ApiError
from oxcart.http.mailbox import Mailbox
from oxcart.http.times import rfc3339_ms
from oxcart.http.values import JobBody, job_body
from oxcart.lane_events import LaneEvents
from oxcart.model.errors import OxcartError, ValidationError
from oxcart.model.event import Event
from oxcart.model.job import Job
from oxcart.model.state import State
from oxcart.queue import Queue

log = logging.getLogger("oxcart.http")

#: Messages that a slow listener may fall behind before its stream ends; it continues by its position.
BACKLOG = 4000
#: Seconds between attempts to read a stream whose server is away.
AGAIN = 1.0
#: Events of lanes whose jobs are read at once.
PAGE = 1000
#: Seconds between two reads of the events of a queue's lanes.
LANES_EVERY = 1.0
#: Listeners at once.
MOST = 2000

#: The name and the job's state that each event of the wire stands for.
_NAMES = {
    "added": ("job.created", State.PENDING),
    "active": ("job.started", State.RUNNING),
    "progress": ("job.progress", State.RUNNING),
    "completed": ("job.completed", State.COMPLETED),
    "failed": ("job.failed", State.FAILED),
    "removed": ("job.deleted", None),
}


class Message(msgspec.Struct, frozen=True):
    """One message of the event stream.

    Attributes:
        queue: The queue's name.
        event_id: The id of the event in the queue's stream.
        name: ``job.created``, ``job.started`` and so on.
        job_id: The job.
        data: The message's data, as JSON.
        place: The event's place among those of the queue's lanes; None for an event of the queue itself.
    """

    queue: str
    event_id: str
    name: str
    job_id: str
    data: bytes
    place: LanePlace | None = None


class Position:
    """The last event read of each queue, and of the lanes of each queue, as text for ``Last-Event-ID``."""

    def __init__(self, ids: Mapping[str, str], lanes: Mapping[str, LanePlace] | None = None) -> None:
        self.ids = dict(ids)
        self.lanes = dict(lanes or {})

    def take(self, message: Message) -> None:
        """Moves behind a message."""
        if message.place is None:
            self.ids[message.queue] = message.event_id
        else:
            self.lanes[message.queue] = message.place

    @classmethod
    def parse(cls, text: str) -> Position:
        """Reads a position.

        Raises:
            ValidationError: The text is none.
        """
        ids: dict[str, str] = {}
        lanes: dict[str, LanePlace] = {}
        for part in filter(None, text.split(";")):
            name, _, event_id = part.partition("=")
            event_id, sign, lane = event_id.partition("@")
            ms, _, number = event_id.partition("-")
            if not (name and _digits(ms) and _digits(number)):
                raise ValidationError("Last-Event-ID", "the id of an event of this stream", text)
            if sign:
                lanes[unquote(name)] = (int(ms), int(number), unquote(lane))
            else:
                ids[unquote(name)] = event_id
        return cls(ids, lanes)

    def __str__(self) -> str:
        parts = [f"{quote(name, safe='')}={event_id}" for name, event_id in sorted(self.ids.items())]
        parts += [
            f"{quote(name, safe='')}={ms}-{number}@{quote(lane, safe='')}"
            for name, (ms, number, lane) in sorted(self.lanes.items())
        ]
        return ";".join(parts)


class Listener(Mailbox[Message]):
    """One open event stream. A client whose stream ends continues from the last message that it has.

    Attributes:
        position: The last event that it has of each queue.
        joined: The last event that the hub had read of each queue when the listener joined.
        joined_lanes: The same for the lanes of each queue.
    """

    def __init__(
        self, position: Position, joined: Mapping[str, str], joined_lanes: Mapping[str, LanePlace]
    ) -> None:
        super().__init__(BACKLOG)
        self.position = position
        self.joined = joined
        self.joined_lanes = joined_lanes


class Hub:
    """Reads the events of queues while somebody listens.

    Args:
        queues: The queues.
    """

    def __init__(self, queues: Iterable[Queue]) -> None:
        self._queues = list(queues)
        self._listeners: set[Listener] = set()
        self._of_job: dict[str, set[Listener]] = {}
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._lane_readers: dict[str, asyncio.Task[None]] = {}
        self._positions: dict[str, str] = {}
        self._places: dict[str, LanePlace] = {}
        self._wanted = 0
        self._lock = asyncio.Lock()

    def check_room(self) -> None:
        """Refuses a listener beyond the bound.

        Raises:
            ApiError: There are too many listeners.
        """
        if self._wanted >= MOST:
            error = ApiError(429, "quota_exceeded", f"there are already {MOST} listeners; try again later")
            error.headers["Retry-After"] = "5"
            raise error

    @contextlib.asynccontextmanager
    async def listen(
        self, since: Position | None, queues: Container[str], job_id: str | None = None
    ) -> AsyncIterator[Listener]:
        """Adds a listener. Its stream contains every event after this call, or after ``since``.

        Args:
            since: Where to continue; None for new events alone.
            queues: The names of the queues whose events it may have.
            job_id: The only job whose events it wants; None for all. Events of other jobs cost it nothing.
        """
        self._wanted += 1
        try:
            await self._start()
            # Without a pause between these lines: the backlog ends where the hub's messages begin.
            joined = {name: at for name, at in self._positions.items() if name in queues}
            places = {name: at for name, at in self._places.items() if name in queues}
            known, lanes = ({}, {}) if since is None else (since.ids, since.lanes)
            position = Position(
                {name: known.get(name, at) for name, at in joined.items()},
                {name: lanes.get(name, at) for name, at in places.items()},
            )
            listener = Listener(position, joined, places)
            listeners = self._listeners if job_id is None else self._of_job.setdefault(job_id, set())
            listeners.add(listener)
            try:
                yield listener
            finally:
                listeners.discard(listener)
                if job_id is not None and not listeners:
                    self._of_job.pop(job_id, None)
        finally:
            self._wanted -= 1
            if not self._wanted:
                await self._stop()

    async def missed(self, listener: Listener) -> AsyncIterator[Message]:
        """Yields the messages between a listener's position and that of the hub when it joined."""
        for queue in self._queues:
            if queue.name not in listener.joined:
                continue
            end = _key(listener.joined[queue.name])
            if _key(listener.position.ids[queue.name]) >= end:
                continue
            async with queue.events(listener.position.ids[queue.name]) as stream:
                while _key(stream.position) < end and (events := await stream.read(block=0.001)):
                    for message in await _messages(queue, [e for e in events if _key(e.id) <= end]):
                        yield message
        for queue in self._queues:
            last = listener.joined_lanes.get(queue.name)
            if last is None or listener.position.lanes[queue.name] >= last:
                continue
            lanes = LaneEvents(queue, listener.position.lanes[queue.name])
            while rows := [row for row in await lanes.read() if row[0] <= last]:
                for message in await _of_lanes(queue, rows):
                    yield message

    async def close(self) -> None:
        """Ends all streams and stops reading."""
        for listener in [*self._listeners, *(one for some in self._of_job.values() for one in some)]:
            listener.end()
        await self._stop()

    async def _stop(self) -> None:
        async with self._lock:
            readers = [*self._readers.values(), *self._lane_readers.values()]
            self._readers, self._lane_readers = {}, {}
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    async def _start(self) -> None:
        async with self._lock:
            for queue in self._queues:
                if queue.name not in self._readers:
                    stream = queue.events()
                    await stream.ready()
                    self._positions[queue.name] = stream.position
                    self._readers[queue.name] = asyncio.create_task(
                        self._read(queue, stream), name=f"oxcart-http-events {queue.name}"
                    )
                if queue.name not in self._lane_readers and queue.capabilities.can("lanes"):
                    lanes = LaneEvents(queue)
                    self._places[queue.name] = await lanes.ready()
                    self._lane_readers[queue.name] = asyncio.create_task(
                        self._read_lanes(queue, lanes), name=f"oxcart-http-lanes {queue.name}"
                    )

    async def _read(self, queue: Queue, stream: QueueEvents) -> None:
        try:
            while True:
                try:
                    events = await stream.read()
                    messages = await _messages(queue, events)
                except OxcartError as error:
                    log.warning("cannot read the events of queue %s, trying again: %s", queue.name, error)
                    await asyncio.sleep(AGAIN)
                    continue
                self._positions[queue.name] = stream.position
                self._offer(messages)
        finally:
            await stream.close()

    async def _read_lanes(self, queue: Queue, lanes: LaneEvents) -> None:
        while True:
            try:
                rows = await lanes.read()
                messages = await _of_lanes(queue, rows)
            except OxcartError as error:
                log.warning("cannot read the events of lanes of %s, trying again: %s", queue.name, error)
                lanes.position = self._places[queue.name]
                await asyncio.sleep(AGAIN)
                continue
            if rows:
                self._places[queue.name] = rows[-1][0]
            self._offer(messages)
            await asyncio.sleep(LANES_EVERY)

    def _offer(self, messages: Iterable[Message]) -> None:
        for message in messages:
            for listener in (*self._listeners, *self._of_job.get(message.job_id, ())):
                if message.queue in listener.joined:
                    listener.offer(message)


async def _of_lanes(queue: Queue, rows: Sequence[tuple[LanePlace, Event]]) -> list[Message]:
    """Returns the messages of some events of lanes."""
    made = []
    for at in range(0, len(rows), PAGE):
        part = rows[at : at + PAGE]
        places = {id(event): place for place, event in part}
        for message, event in await _pairs(queue, [event for _, event in part]):
            made.append(msgspec.structs.replace(message, place=places[id(event)]))
    return made


async def _messages(queue: Queue, events: Iterable[Event]) -> list[Message]:
    """Returns the messages of some events, with their jobs as they are now."""
    return [message for message, _ in await _pairs(queue, events)]


async def _pairs(queue: Queue, events: Iterable[Event]) -> list[tuple[Message, Event]]:
    named = [(event, *_name(event)) for event in events if event.job_id]
    wanted = [row for row in named if row[1]]
    ids = list(dict.fromkeys(event.job_id or "" for event, name, _ in wanted if name != "job.deleted"))
    jobs = dict(zip(ids, await queue._core.broker.look(ids, lenient=True), strict=True)) if ids else {}
    made = []
    for event, name, state in wanted:
        job_id = event.job_id or ""
        if event.name == "delayed" and not ((job := jobs.get(job_id)) and job.attempts_started):
            continue  # an add with a delay; the wire has the same event for a retry
        if name == "job.deleted" or state is None:
            data = msgspec.json.encode({"id": job_id})
        else:
            body = _body(event, jobs.get(job_id), state)
            if name == "job.failed" and body.state == State.CANCELLED:
                name = "job.cancelled"
            data = msgspec.json.encode(body)
        made.append((Message(queue.name, event.id, name, job_id, data), event))
    return made


def _name(event: Event) -> tuple[str, State | None]:
    if event.name == "delayed":
        return "job.retried", State.RETRYING
    if event.name == "waiting" and event.prev in ("active", "failed", "completed"):
        return "job.retried", State.SCHEDULED
    return _NAMES.get(event.name, ("", None))


def _body(event: Event, job: Job | None, state: State) -> JobBody:
    if job is not None:
        return job_body(job)
    # The job was removed when it ended: the event is all that is left.
    return JobBody(
        id=event.job_id or "",
        type=event.fields.get("name", ""),
        queue=event.queue,
        state=state.value,
        priority=0,
        attempt=0,
        max_attempts=1,
        progress=0.0,
        progress_message="",
        tags={},
        created_at=rfc3339_ms(event.timestamp),
        updated_at=rfc3339_ms(event.timestamp),
        last_error=event.failed_reason,
    )


def _key(event_id: str) -> tuple[int, int]:
    ms, _, number = event_id.partition("-")
    return int(ms), int(number or 0)


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20
