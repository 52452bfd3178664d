"""Reads a queue's event stream, forwards with a blocking read and backwards in pages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from oxcart.broker.caller import PASSING, script_error
from oxcart.broker.event_codec import decode_event
from oxcart.broker.link import Link, LinkClosed, ReplyError
from oxcart.broker.progress import OnProgress, Progress, silent
from oxcart.broker.replies import pairs
from oxcart.model.errors import BrokerUnavailable
from oxcart.model.event import Event

if TYPE_CHECKING:
    from oxcart.broker.port import ServedBroker

#: An event as it is stored: its id, and its fields.
Entry = tuple[str, dict[bytes, bytes]]

log = logging.getLogger("oxcart.events")

#: Events that one step of a trim drops at most; streams are cut by whole nodes of about a hundred.
TRIM = 10_000

#: Events that one read returns at most.
PAGE = 1000
#: Events of the first page backwards, most often enough for the end of a job that is gone.
NEWEST = 50

#: Replies to a blocked read after which it is sent again: the stream is elsewhere, or not there for now.
_AGAIN = PASSING | {"ASK", "MOVED", "UNBLOCKED"}


class EventReader:
    """The event stream of one queue, over a connection of its own that opens with the first blocking read.

    Args:
        broker: The queue.
        unseals: Whether it opens sealed values; one that does not open stays sealed.
    """

    def __init__(self, broker: ServedBroker, *, unseals: bool = False) -> None:
        self._broker = broker
        self._sealer = broker.sealer if unseals else None
        self._link: Link | None = None

    async def last_id(self) -> str:
        """Returns the id of the newest event, ``0-0`` for none."""
        newest = await self._broker.caller.command(
            "XREVRANGE", self._broker.keys.events(), "+", "-", "COUNT", 1
        )
        return newest[0][0].decode() if newest else "0-0"

    async def read(self, since: str, block: float) -> list[Event]:
        """Returns the events after an id; waits for one for so many seconds.

        Raises:
            ScriptError: As `read_entries`.
            BrokerUnavailable: As `read_entries`.
        """
        queue, sealer = self._broker.queue, self._sealer
        entries = await self.read_entries(since, block)
        return [decode_event(entry_id, fields, queue, sealer) for entry_id, fields in entries]

    async def read_entries(self, since: str, block: float) -> list[Entry]:
        """As `read`, with events as they are stored.

        Raises:
            ScriptError: The server refused for good, for example because the key is no stream.
            BrokerUnavailable: The reader was closed.
        """
        broker = self._broker
        link = self._link
        if link is None:
            link = self._link = broker.server.link(broker.slot, client_name=broker.keys.client_name(":qe"))
        attempt = 0
        while True:
            try:
                answer = await link.call(
                    *("XREAD", "COUNT", PAGE, "BLOCK", max(1, int(block * 1000))),
                    *("STREAMS", broker.keys.events(), since),
                    timeout=block + 5,
                )
            except LinkClosed:
                raise
            except (BrokerUnavailable, ReplyError) as error:
                if isinstance(error, ReplyError):
                    if error.code not in _AGAIN:
                        raise script_error("reading events", str(error)) from error
                    link.drop("the stream is elsewhere")
                broker.server.forget_slots()
                attempt += 1
                pause = broker.caller.reconnect.pause(attempt, holding=True)
                if attempt == 1:
                    log.warning(
                        "could not read events of queue %s, retrying in %.1f s: %s",
                        broker.queue,
                        pause,
                        error,
                    )
                await asyncio.sleep(pause)
            else:
                if not answer:
                    return []
                ((_, entries),) = answer
                return _entries(entries)

    async def backwards(self) -> AsyncIterator[Event]:
        """Yields the events that are still there, newest first."""
        end, count = "+", NEWEST
        while True:
            page = _entries(
                await self._broker.caller.command(
                    "XREVRANGE", self._broker.keys.events(), end, "-", "COUNT", count
                )
            )
            for entry in page:
                yield decode_event(*entry, self._broker.queue, self._sealer)
            if len(page) < count:
                return
            end, count = "(" + page[-1][0], min(PAGE, 4 * count)

    async def close(self) -> None:
        """Closes the connection of blocking reads."""
        if self._link is not None:
            await self._link.close()
            self._link = None


async def trim_events(broker: ServedBroker, keep: int, *, progress: OnProgress = silent) -> int:
    """Drops the oldest events, down to about so many; returns how many."""
    events = broker.keys.events()
    total = max(0, int(await broker.caller.command("XLEN", events)) - keep)
    done = 0
    while True:
        # Not exact: a stream is cut by whole nodes. A trim that is repeated drops nothing more.
        dropped = int(await broker.caller.write("XTRIM", events, "MAXLEN", "~", keep, "LIMIT", TRIM))
        if not dropped:
            return done
        done += dropped
        progress(Progress("events", done, max(total, done)))


def _entries(raw: list[Any]) -> list[Entry]:
    return [(entry_id.decode(), pairs(fields)) for entry_id, fields in raw]
