"""The event hub: one reader per queue, shared by all listeners of the event stream.

Every message has a position: the last event read of each queue. A listener that reconnects with it reads
what it missed from the queues' own streams, up to where the hub is, and then listens to the hub.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Container, Iterable, Sequence

from oxcart.broker.port.streams import LanePlace
from oxcart.events import QueueEvents
from oxcart.http.errors import ApiError
from oxcart.http.lane_events import LaneEvents
from oxcart.http.mailbox import Mailbox
from oxcart.http.messages import Message, lines_of, messages_of, text_of
from oxcart.http.position import Position, is_behind
from oxcart.model.errors import OxcartError
from oxcart.model.event import Event
from oxcart.queue import Queue

log = logging.getLogger("oxcart.http")

#: Messages that a slow listener may fall behind before its stream ends; it continues by its position.
BACKLOG = 4000
#: Seconds between attempts to read a stream whose server is away.
AGAIN = 1.0
#: Events of one read from which a stream is busy, and the seconds until its next read: so one serves many.
BUSY, GATHER = 10, 0.02
#: Events whose jobs are read at once.
PAGE = 1000
#: Seconds between two reads of the events of a queue's lanes.
LANES_EVERY = 1.0
#: Seconds between two comments to all listeners, which keep silent connections open.
KEEP_ALIVE = 30.0
#: Listeners at once.
MOST = 2000

_CONNECTED = text_of("connected", b'{"status":"connected"}')
_COMMENT = b": keep-alive\n\n"


class Audience:
    """Listeners that may see the same queues. They share a position, and the text of each message.

    Args:
        position: The last event of each queue, and of its lanes, that was offered.

    Attributes:
        all: Listeners that want all jobs.
        of_job: Listeners that want one job.
    """

    def __init__(self, position: Position) -> None:
        self.position = position
        self.all: set[Mailbox] = set()
        self.of_job: dict[str, set[Mailbox]] = {}

    @property
    def listeners(self) -> list[Mailbox]:
        """All of its listeners."""
        return [*self.all, *(one for some in self.of_job.values() for one in some)]

    def wants(self, queue: str, job_id: str) -> bool:
        """Returns whether a listener wants the events of a job."""
        return queue in self.position.ids and (bool(self.all) or job_id in self.of_job)

    def offer(self, message: Message) -> None:
        """Hands a message to those that want it."""
        if message.queue not in self.position.ids:
            return
        message.move(self.position)
        some = self.of_job.get(message.job_id, ())
        if self.all or some:
            text = message.at(self.position)
            for listener in (*self.all, *some):
                listener.offer(text)


class Hub:
    """Reads the events of queues while somebody listens.

    Args:
        queues: The queues.
    """

    def __init__(self, queues: Iterable[Queue]) -> None:
        self._queues = list(queues)
        self._audiences: dict[frozenset[str], Audience] = {}
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._lane_readers: dict[str, asyncio.Task[None]] = {}
        self._ticker: asyncio.Task[None] | None = None
        self._position = Position({})
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

    async def follow(
        self,
        since: Position | None,
        queues: Container[str],
        job_id: str | None = None,
        listener: Mailbox | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """Yields the lines of every event after this call, or after ``since``.

        Args:
            since: Where to continue; None for new events alone.
            queues: The names of the queues whose events the listener may have.
            job_id: The only job whose events it wants; None for all. Events of other jobs cost it nothing.
            listener: What it receives; None for a new one. Ending it ends the stream.
        """
        listener = listener or Mailbox(BACKLOG)
        self._wanted += 1
        try:
            await self._start()
            # Without a pause until the listener is in: its backlog ends where the hub's messages begin.
            names = frozenset(name for name in self._position.ids if name in queues)
            audience = self._audiences.get(names)
            if audience is None:
                audience = self._audiences[names] = Audience(_part(self._position, names))
            joined = _part(audience.position, names)
            position = Position(
                {name: since.ids.get(name, at) if since else at for name, at in joined.ids.items()},
                {name: since.lanes.get(name, at) if since else at for name, at in joined.lanes.items()},
            )
            listeners = audience.all if job_id is None else audience.of_job.setdefault(job_id, set())
            listeners.add(listener)
            try:
                yield lines_of(position, _CONNECTED)
                async for message in self._missed(position, joined):
                    if listener.is_ended:
                        return
                    if job_id is None or message.job_id == job_id:
                        yield message.at(position)
                while (lines := await listener.take()) is not None:
                    yield lines
            finally:
                listeners.discard(listener)
                if job_id is not None and not listeners and audience.of_job.get(job_id) is listeners:
                    del audience.of_job[job_id]
                if not audience.all and not audience.of_job and self._audiences.get(names) is audience:
                    del self._audiences[names]
        finally:
            self._wanted -= 1
            if not self._wanted:
                await self._stop()

    async def _missed(self, position: Position, joined: Position) -> AsyncIterator[Message]:
        """Yields the messages between a listener's position, which it moves, and that of its audience."""
        for queue in self._queues:
            if queue.name not in joined.ids:
                continue
            end = joined.ids[queue.name]
            if not is_behind(position.ids[queue.name], end):
                continue
            # One server answers a read at once; several of a partitioned queue do not answer together.
            block = 0.001 if queue._core.broker.partitions is None else 1.0
            async with queue.events(position.ids[queue.name]) as stream:
                while is_behind(stream.position, end) and (events := await stream.read(block)):
                    events = [event for event in events if not is_behind(end, event.id)]
                    for message in await messages_of(queue, events):
                        if message is not None:
                            message.move(position)
                            yield message
        for queue in self._queues:
            last = joined.lanes.get(queue.name)
            if last is None or position.lanes[queue.name] >= last:
                continue
            lanes = LaneEvents(queue, position.lanes[queue.name])
            while rows := [row for row in await lanes.read() if row[0] <= last]:
                for at in range(0, len(rows), PAGE):
                    part = rows[at : at + PAGE]
                    places, events = [place for place, _ in part], [event for _, event in part]
                    for message in await messages_of(queue, events, places):
                        if message is not None:
                            message.move(position)
                            yield message

    async def add(self, queue: Queue) -> None:
        """Reads one more queue, or another in place of that of its name.

        All streams end, because each has its queues from its beginning on.
        """
        self._queues = [*(one for one in self._queues if one.name != queue.name), queue]
        # First the readers: a listener that joins meanwhile would otherwise wait for readers that have ended.
        await self._stop()
        self._end_all()

    async def close(self) -> None:
        """Ends all streams and stops reading."""
        self._end_all()
        await self._stop()

    def _end_all(self) -> None:
        for audience in self._audiences.values():
            for listener in audience.listeners:
                listener.end()
        # A listener that stalls leaves late. Nobody may join it: the next readers begin behind its position.
        self._audiences.clear()

    async def _stop(self) -> None:
        async with self._lock:
            tasks = [*self._readers.values(), *self._lane_readers.values()]
            if self._ticker is not None:
                tasks.append(self._ticker)
            self._readers, self._lane_readers, self._ticker = {}, {}, None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _start(self) -> None:
        async with self._lock:
            for queue in self._queues:
                if queue.name not in self._readers:
                    stream = queue.events()
                    await stream.ready()
                    self._position.move(queue.name, stream.position)
                    self._readers[queue.name] = asyncio.create_task(
                        self._read(queue, stream), name=f"oxcart-http-events {queue.name}"
                    )
                if queue.name not in self._lane_readers and queue.capabilities.can("lanes"):
                    lanes = LaneEvents(queue)
                    self._position.move_lanes(queue.name, await lanes.ready())
                    self._lane_readers[queue.name] = asyncio.create_task(
                        self._read_lanes(queue, lanes), name=f"oxcart-http-lanes {queue.name}"
                    )
            if self._ticker is None:
                self._ticker = asyncio.create_task(self._tick(), name="oxcart-http-keep-alive")

    async def _tick(self) -> None:
        # One clock for all: a timer per listener and message would cost more than the message.
        while True:
            await asyncio.sleep(KEEP_ALIVE)
            for audience in self._audiences.values():
                for listener in audience.listeners:
                    listener.offer(_COMMENT)

    async def _read(self, queue: Queue, stream: QueueEvents) -> None:
        try:
            while True:
                try:
                    events = await stream.read()
                    messages = await self._messages(queue, events)
                except OxcartError as error:
                    log.warning("cannot read the events of queue %s, trying again: %s", queue.name, error)
                    stream.position = self._position.ids[queue.name]
                    await asyncio.sleep(AGAIN)
                    continue
                self._offer(messages)
                for position in self._positions():
                    if queue.name in position.ids:
                        position.move(queue.name, stream.position)
                if len(events) >= BUSY:
                    await asyncio.sleep(GATHER)
        finally:
            await stream.close()

    async def _read_lanes(self, queue: Queue, lanes: LaneEvents) -> None:
        while True:
            try:
                rows = await lanes.read()
                messages = await self._messages(queue, [row[1] for row in rows], [row[0] for row in rows])
            except OxcartError as error:
                log.warning("cannot read the events of lanes of %s, trying again: %s", queue.name, error)
                lanes.position = self._position.lanes[queue.name]
                await asyncio.sleep(AGAIN)
                continue
            self._offer(messages)
            if rows:
                for position in self._positions():
                    if queue.name in position.lanes:
                        position.move_lanes(queue.name, rows[-1][0])
            await asyncio.sleep(LANES_EVERY)

    async def _messages(
        self, queue: Queue, events: Sequence[Event], places: Sequence[LanePlace] | None = None
    ) -> list[Message]:
        """Returns the messages of those events that a listener wants."""
        made: dict[int, Message] = {}
        left = set(range(len(events)))
        # Again after each read: a listener may have joined meanwhile, and its stream begins before these.
        while wanted := sorted(at for at in left if self._is_wanted(queue.name, events[at].job_id or "")):
            wanted = wanted[:PAGE]
            left.difference_update(wanted)
            there = None if places is None else [places[at] for at in wanted]
            found = await messages_of(queue, [events[at] for at in wanted], there)
            made |= {at: one for at, one in zip(wanted, found, strict=True) if one is not None}
        return [made[at] for at in sorted(made)]

    def _is_wanted(self, queue: str, job_id: str) -> bool:
        return any(audience.wants(queue, job_id) for audience in self._audiences.values())

    def _offer(self, messages: Iterable[Message]) -> None:
        for message in messages:
            for audience in self._audiences.values():
                audience.offer(message)

    def _positions(self) -> list[Position]:
        return [self._position, *(audience.position for audience in self._audiences.values())]


def _part(position: Position, names: Container[str]) -> Position:
    """Returns the position of some queues."""
    return Position(
        {name: at for name, at in position.ids.items() if name in names},
        {name: at for name, at in position.lanes.items() if name in names},
    )
