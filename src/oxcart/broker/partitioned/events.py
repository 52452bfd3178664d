"""The events of all partitions as one stream, by their time.

A position names the last event of every partition: ``<ms>-<n>@<id of partition 0>,<id of 1>,…``. The text
before the ``@`` is the id of the last event itself. Servers have clocks of their own, and no event waits for
those of another partition: between partitions, events that are closer than a read come as they arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec

from oxcart.broker.events import PAGE
from oxcart.broker.partitioned.merging import merge
from oxcart.broker.partitioned.spread import Spread
from oxcart.broker.port.streams import EventStream
from oxcart.model.errors import ValidationError
from oxcart.model.event import Event

#: Seconds that a partition may take to answer before its events are left for later.
PATIENCE = 5.0
#: Seconds of one block of a partition's read; its end shows further partitions.
BLOCK = 10.0


def _number(entry_id: str) -> tuple[int, int]:
    ms, _, count = entry_id.partition("-")
    return int(ms), int(count or 0)


class MergedEvents(EventStream):
    """The events of a partitioned queue."""

    def __init__(self, spread: Spread, *, unseals: bool = False) -> None:
        self._spread = spread
        self._unseals = unseals
        self._streams: dict[int, EventStream] = {}
        self._reads: dict[int, asyncio.Task[list[Event]]] = {}
        self._waiting: dict[int, list[Event]] = {}  # events that were read and not returned yet
        self._positions: list[str] = []
        self._last = ""

    async def last_id(self) -> str:
        """Returns the position behind the newest event of each partition."""
        await self._spread.refresh()

        async def newest(number: int) -> str:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    return await self._stream(number).last_id()
            return f"{self._spread.broker(number).clock()}-0"  # its server is away

        found = await asyncio.gather(*map(newest, range(self._spread.layout.served)))
        return _position(max(found, key=_number), found)

    async def read(self, since: str, block: float) -> list[Event]:
        """Returns the events after a position, by their time; waits for one for so many seconds."""
        await self._spread.ready()
        if since != self._last:
            await self._seek(since)
        count = self._spread.layout.served
        self._positions += ["0-0"] * (count - len(self._positions))  # new partitions: from the beginning
        for number in range(count):
            if number not in self._reads and not self._waiting.get(number):
                read = self._stream(number).read(self._positions[number], BLOCK)
                self._reads[number] = asyncio.create_task(read, name="oxcart-events")
        if not any(self._waiting.values()):
            await asyncio.wait(self._reads.values(), timeout=block, return_when=asyncio.FIRST_COMPLETED)
        self._collect()
        if any(self._waiting.values()) and len(self._waiting) < count and self._history():
            # A partition with a full page may have older events than the others: let all of them answer.
            await asyncio.wait(self._reads.values(), timeout=min(block, 0.05))
            self._collect()
        return self._take()

    def _history(self) -> bool:
        return any(len(entries) >= PAGE for entries in self._waiting.values())

    def _collect(self) -> None:
        for number, task in [*self._reads.items()]:
            if task.done():
                del self._reads[number]
                if entries := task.result():
                    self._waiting[number] = entries

    def _take(self) -> list[Event]:
        full = [entries[-1].id for entries in self._waiting.values() if len(entries) >= PAGE]
        bound = min(map(_number, full), default=None)
        found: list[tuple[int, Event]] = []
        for number, entries in [*self._waiting.items()]:
            ready = [one for one in entries if bound is None or _number(one.id) <= bound]
            found += [(number, one) for one in ready]
            if len(ready) == len(entries):
                del self._waiting[number]
            else:
                self._waiting[number] = entries[len(ready) :]
        found.sort(key=lambda one: _number(one[1].id))
        taken: list[Event] = []
        for number, event in found:
            self._positions[number] = event.id
            self._last = _position(event.id, self._positions)
            taken.append(msgspec.structs.replace(event, id=self._last, queue=self._spread.queue))
        return taken

    async def _seek(self, since: str) -> None:
        await self._stop()
        self._waiting.clear()
        await self._spread.refresh()
        entry_id, at, rest = since.partition("@")
        try:
            _number(entry_id)
            positions = rest.split(",") if at else [entry_id]
            for one in positions:
                _number(one)
        except ValueError:
            raise ValidationError("since", "'$', '0' or the position of an event", since) from None
        count = self._spread.layout.served
        self._positions = positions if at else [entry_id if "-" in entry_id else f"{entry_id}-0"] * count
        self._last = since

    async def backwards(self) -> AsyncIterator[Event]:
        """Yields the events that are still there, newest first."""
        await self._spread.refresh()
        rows = [self._stream(number).backwards() for number in range(self._spread.layout.served)]

        def order(event: Event) -> tuple[int, int]:
            ms, count = _number(event.id)
            return -ms, -count

        async for event in merge(rows, order):
            yield msgspec.structs.replace(event, queue=self._spread.queue)

    def _stream(self, number: int) -> EventStream:
        found = self._streams.get(number)
        if found is None:
            found = self._streams[number] = self._spread.broker(number).open_events(unseals=self._unseals)
        return found

    async def _stop(self) -> None:
        reads, self._reads = [*self._reads.values()], {}
        for task in reads:
            task.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
        if reads:  # a cancelled read leaves its connection with an answer under way
            for stream in self._streams.values():
                await stream.close()

    async def close(self) -> None:
        """Ends reads in flight, and closes the connections."""
        reads, self._reads = [*self._reads.values()], {}
        for stream in self._streams.values():
            await stream.close()
        for task in reads:
            task.cancel()
        await asyncio.gather(*reads, return_exceptions=True)


def _position(entry_id: str, positions: list[str]) -> str:
    return f"{entry_id}@{','.join(positions)}"
