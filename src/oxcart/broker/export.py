"""Reads event streams, job records and attached readers, for a copy of a queue's history elsewhere.

A queue has one or two streams. An entry's ordinal is its number since the stream was made, from 1. The server
does not keep it, but counts the entries ever added and those kept. The difference is the ordinal of the last
entry gone, so a reader that keeps an ordinal beside an id knows how many entries it missed.

`oxcart.broker.bullmq.export` and `oxcart.broker.bridge.export` know the keys of each protocol.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from oxcart.broker.caller import Caller

if TYPE_CHECKING:
    from oxcart.broker.connection import Reconnect, Server
    from oxcart.broker.link import Argument
    from oxcart.broker.port import ServedBroker

#: The streams of a queue: its events, and records of attempts that events do not carry.
EVENTS = "events"
ATTEMPTS = "ox:attempts"
#: The id before the first entry of any stream.
START = "0-0"
#: How many events a queue keeps unless something else is set.
DEFAULT_KEPT = 10_000

Pick = Callable[[list[str]], list[str]]
#: An entry as it comes from the wire: its id, then names and values in turn.
Entry = tuple[bytes, list[bytes]]


class StreamFacts(msgspec.Struct, frozen=True):
    """The facts of a stream at one moment.

    Attributes:
        added: Entries ever added since the stream was made.
        kept: Entries still there.
        first: The id of the first one kept; empty for none.
        last: The last id ever given.
        deleted: The highest id that was deleted explicitly; ``0-0`` for none.
        mark: The mark that distinguishes this stream from an earlier one of the same key; may be empty.
    """

    added: int = 0
    kept: int = 0
    first: str = ""
    last: str = START
    deleted: str = START
    mark: str = ""

    @property
    def gone(self) -> int:
        """How many entries are gone: the ordinal of the last of them."""
        return self.added - self.kept

    @property
    def exists(self) -> bool:
        """Whether there is a stream."""
        return self.added > 0 or self.kept > 0


class Stride(msgspec.Struct, frozen=True):
    """A measured run of entries: the stream's facts, how many entries, and the id of the last one."""

    facts: StreamFacts
    count: int
    last: str


class Attached(msgspec.Struct, frozen=True):
    """A queue's settings after a reader was attached.

    Attributes:
        kept: How many events it keeps.
        before: How many it kept until this call; fewer than ``kept`` means that a peer had reset the number.
        mark: The mark of its event stream.
    """

    kept: int
    before: int
    mark: str

    @property
    def was_reset(self) -> bool:
        """Whether a peer had reset the number of kept events."""
        return self.before < self.kept


class JobIds(msgspec.Struct, frozen=True):
    """Ids of jobs; with their queue and state if the protocol lists them so, else both are empty."""

    queue: str
    state: str
    ids: list[str]


class StoredJob(msgspec.Struct, frozen=True):
    """A job's record with its JSON left as text, exactly as it is stored.

    Attributes:
        state: The job's state, in the words that both protocols share; None if it is in no list.
        formal_state: The same in the words of the model.
        created_ms: When it was added; None if the record does not contain it.
        stalls: How often a worker lost it; None if the protocol does not count.
    """

    id: str
    queue: str
    lane: str | None
    state: str | None
    formal_state: str | None
    name: str | None
    data: str | None
    options: str | None
    result: str | None
    reason: str | None
    stacktrace: list[str]
    created_ms: int | None
    started_ms: int | None
    ended_ms: int | None
    delay_ms: int
    priority: int
    attempts_made: int
    attempts_started: int
    stalls: int | None
    worker: str | None
    progress: str | None
    category: str | None
    code: str | None
    correlation_id: str | None
    tags: str | None


class Export(ABC):
    """The streams and records of all queues under one prefix, or of one namespace.

    Queues of one cluster slot share a connection, which is made by the first call. Bound to one event loop.

    Args:
        server: Where they are.
        prefix: BullMQ's prefix, or Bridge's namespace.
        reconnect: Pauses and limit of attempts to reach a lost server.
    """

    #: The streams of a queue, its events first.
    suffixes: ClassVar[tuple[str, ...]]

    def __init__(self, server: Server, prefix: str, reconnect: Reconnect) -> None:
        self._server = server
        self._prefix = prefix
        self._reconnect = reconnect
        self._callers: dict[int | None, Caller] = {}

    async def close(self) -> None:
        """Closes all connections."""
        for caller in self._callers.values():
            await caller.close()

    # -- per protocol

    @abstractmethod
    def _slot(self, queue: str) -> int:
        """The slot of a queue's keys on a cluster."""

    @abstractmethod
    def _stream(self, queue: str, suffix: str) -> str:
        """The key of a stream."""

    @abstractmethod
    async def _script(self, verb: str, queue: str, *arguments: Argument) -> Any:
        """Runs a script about a queue that may be applied twice without harm, or only reads."""

    @abstractmethod
    async def _stride(self, queue: str, suffix: str, *arguments: Argument) -> Any:
        """Runs ``stride.lua``."""

    @abstractmethod
    async def queues(self, names: Sequence[str], pick: Pick | None) -> list[str]:
        """Returns the names of streams: of these queues with their lanes, or picked of all there are."""

    @abstractmethod
    async def readers(self, queue: str) -> dict[str, int]:
        """Returns the attached readers of a queue, each with the time at which it expires, in ms."""

    @abstractmethod
    async def kept(self, queue: str) -> int:
        """Returns how many events a queue keeps."""

    @abstractmethod
    def broker(self, queue: str) -> ServedBroker:
        """Returns the broker of a queue, on the connection of its slot."""

    @abstractmethod
    async def job_ids(
        self,
        queues: Sequence[str],
        states: Collection[str] | None = None,
        ended_from: int | None = None,
        ended_to: int | None = None,
    ) -> list[JobIds]:
        """Lists the ids of jobs.

        Args:
            queues: The queues, by the names of their streams.
            states: Only jobs in these states, if the protocol knows them.
            ended_from: Only jobs that ended at this time or later, in ms, if the protocol knows it.
            ended_to: Only jobs that ended by this time.
        """

    @abstractmethod
    async def jobs(self, queue: str, state: str, ids: Sequence[str]) -> list[StoredJob]:
        """Reads jobs that `job_ids` listed, in one round trip; jobs that are gone are left out."""

    # -- common to both

    async def counts(self, queue: str) -> dict[str, int]:
        """Returns how many jobs of a queue are in each state."""
        return dict(await self.broker(queue).counts())

    async def stride(
        self, queue: str, suffix: str, after: str = START, through: str = "+", most: int = 0
    ) -> Stride:
        """Measures entries of a stream without fetching them.

        Args:
            queue: The queue.
            suffix: Which of its streams.
            after: The id after which the run begins.
            through: The last id that it may reach.
            most: How many entries at most; 0 returns the facts alone.
        """
        reply = await self._stride(queue, suffix, after, through, most)
        added, kept, *texts, count, end = reply
        facts = StreamFacts(int(added), int(kept), *(part.decode() for part in texts))
        return Stride(facts, int(count), end.decode())

    async def page(self, queue: str, suffix: str, first: str, last: str, count: int) -> list[Entry]:
        """Reads entries from one id to another, both included."""
        found: list[Entry] = await self._at(queue).command(
            "XRANGE", self._stream(queue, suffix), first, last, "COUNT", count
        )
        return found

    async def page_with_facts(
        self, queue: str, suffix: str, after: str, last: str, count: int
    ) -> tuple[StreamFacts, list[Entry]]:
        """Reads entries after an id, and the stream's facts of the same moment; its mark is left out."""
        key = self._stream(queue, suffix)
        replies = await self._at(queue).pipeline(
            [
                ("MULTI",),
                ("XRANGE", key, f"({after}", last, "COUNT", count),
                ("XINFO", "STREAM", key),
                ("EXEC",),
            ]
        )
        entries, flat = replies[-1]
        if isinstance(flat, Exception):  # there is no stream
            return StreamFacts(), []
        facts = dict(zip(flat[::2], flat[1::2], strict=True))
        first = facts[b"first-entry"]
        return (
            StreamFacts(
                int(facts[b"entries-added"]),
                int(facts[b"length"]),
                first[0].decode() if first else "",
                facts[b"last-generated-id"].decode(),
                facts[b"max-deleted-entry-id"].decode(),
            ),
            entries,
        )

    async def attach(
        self, queue: str, reader: str, term_ms: int, keep: int, now: int | str, mark: str
    ) -> Attached | None:
        """Attaches a reader to a queue, or renews it; returns None if there is no such queue.

        Args:
            queue: The queue.
            reader: The reader's name.
            term_ms: After so many ms without a renewal it is detached.
            keep: How many events the queue keeps at least.
            now: The time in ms, or empty for the server's.
            mark: The mark for an event stream that has none.
        """
        reply = await self._script("attach", queue, reader, term_ms, keep, now, mark)
        if not reply:
            return None
        kept, before, written = reply
        return Attached(int(kept), int(before), written.decode())

    async def detach(self, queue: str, reader: str, now: int | str) -> int:
        """Detaches a reader; returns how many readers the queue has left."""
        return int(await self._script("detach", queue, reader, now))

    def _at(self, queue: str) -> Caller:
        """The caller of a queue's slot."""
        slot = self._slot(queue) if self._server.is_cluster else None
        if slot not in self._callers:
            self._callers[slot] = Caller(self._server, slot, "export", reconnect=self._reconnect)
        return self._callers[slot]
