"""The tailer: follows event streams closely and writes their entries to a local spool.

The server trims streams, and a batch of Spark takes its time to start. So the tailer reads every stream as it
grows, renews the attachment of its queues, samples their lengths each minute, and writes rows of bronze into
the spool. It warns when a Node constructor had reset a queue's retention. With the option ``spool`` the
source reads the spool instead of the server; ordinals are the same, so that the two can take turns.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from oxcart.broker.export import EVENTS
from oxcart.model.errors import BrokerError
from oxcart.spark.options import QueueSelection, ServerAddress
from oxcart.spark.read.attachment import KEEP, attach_over
from oxcart.spark.read.connection import Connection, split_key, stream_key
from oxcart.spark.read.entries import counts_row, lost_row, page_rows
from oxcart.spark.read.position import Position, order, read_position
from oxcart.spark.read.spool import Spool
from oxcart.spark.read.stream import Lost

log = logging.getLogger("oxcart.spark.read.tailer")

#: Entries per pass and stream; also the most that a segment holds.
MOST = 20_000
MINUTE_MS = 60_000
#: Seconds between renewals of the attachment.
RENEW_EVERY = 30.0
#: The share of time that the search for new queues may take: with few keys it runs with every pass.
LOOKING = 0.05


class Tailer:
    """Fills a spool.

    Args:
        address: The server.
        selection: The queues.
        spool: The spool.
        name: The reader under whose name queues are attached.
        keep: Events that a queue keeps at least.
        begin: Where to begin with streams that have no spool yet.
        clock: The time in ms.
    """

    def __init__(
        self,
        address: ServerAddress,
        selection: QueueSelection,
        spool: Spool,
        *,
        name: str = "main",
        keep: int = KEEP,
        begin: Mapping[str, Any] | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._address = address
        self._selection = selection
        self._spool = spool
        self._name = name
        self._keep = keep
        self._begin = {key: read_position(at) for key, at in (begin or {}).items()}
        self._clock = clock
        self._positions: dict[str, Position] = {}
        self._ends: dict[str, Position | None] = {}
        self._queues: list[str] = []
        self._attached: set[str] = set()
        self._renewed = self._look_at = float("-inf")

    def run(self, stop: threading.Event, idle: float = 0.25) -> None:
        """Follows the streams until ``stop`` is set; waits for a server that is away."""
        while not stop.is_set():
            try:
                if self.step() < MOST:
                    stop.wait(idle)  # many small segments would cost more than the delay
            except BrokerError as error:
                log.warning("could not read the streams, retrying in 1 s: %s", error)
                stop.wait(1.0)

    def step(self) -> int:
        """Reads all streams once; returns how many entries it read."""
        read = 0
        with Connection(self._address) as connection:
            self._attach(connection)
            ends, minute = connection.ends(self._queues), self._clock() // MINUTE_MS
            for queue in self._queues:
                if self._is_read(queue, ends[queue], minute):
                    continue
                before = read
                # Records before their events: so the spool has the record of every event in it.
                until = connection.stream(queue).end().id
                for suffix in self._address.suffixes[1:]:
                    records = stream_key(queue, suffix)
                    found = self._follow(connection, records)
                    if found >= MOST:
                        until = min(until, self._position(records).id, key=order)
                    read += found
                read += self._follow(connection, queue, until)
                # A pass that finds nothing new has read all that there was when it began.
                self._ends[queue] = ends[queue] if read == before else None
        return read

    def _is_read(self, queue: str, end: Position, minute: int) -> bool:
        """Whether an earlier pass has read all of a queue; a record is written together with its event."""
        return self._ends.get(queue) == end and self._position(queue).minute >= minute

    def _attach(self, connection: Connection) -> None:
        """Attaches queues that are new, and all of them again every so often.

        A new queue keeps few events and records no attempts until it is attached, so it does not wait for the
        next renewal.
        """
        now = time.monotonic()
        renew = now - self._renewed > RENEW_EVERY
        if renew or now >= self._look_at:
            self._queues = connection.queues(self._selection)
            self._look_at = time.monotonic() + (time.monotonic() - now) / LOOKING
        for queue in self._queues:
            if not renew and queue in self._attached:
                continue
            made = attach_over(connection, queue, self._name, keep=self._keep)
            if made is None:
                self._attached.discard(queue)
                continue
            if queue in self._attached and made.was_reset:
                log.warning(
                    "%s kept %d events, now %d: a Node Queue resets it unless it passes skipMetasUpdate",
                    queue,
                    made.before,
                    made.kept,
                )
            self._attached.add(queue)
        if renew:
            self._renewed = now

    def _position(self, key: str) -> Position:
        if key not in self._positions:
            self._positions[key] = self._spool.end(key) or self._begin.get(key, Position())
        return self._positions[key]

    def _follow(self, connection: Connection, key: str, until: str = "+") -> int:
        at = self._position(key)
        queue, suffix = split_key(key)
        stream = connection.stream(key)
        pieces = stream.plan(at, MOST, until)
        now = self._clock()
        minute = now // MINUTE_MS
        batches: list[Any] = []
        through = pieces[-1].through if pieces else at
        for piece in pieces:
            for part in stream.read(piece):
                if isinstance(part, Lost):
                    batches.append(lost_row(part, queue, suffix, now))
                else:
                    batches.append(page_rows(part, queue, suffix))
        if suffix == EVENTS and through.life and through.minute < minute:
            batches.append(counts_row(connection.counts(queue), queue, now, through.id))
            through = Position(through.id, through.n, through.life, through.mark, minute)
        if batches:
            self._spool.write(key, through, batches)
            self._positions[key] = through
        return through.n - at.n if through.life == at.life else through.n


class Tailing:
    """A tailer in a thread of its own, until `stop`; `check` raises the error that ended it.

    Args:
        tailer: The tailer.
    """

    def __init__(self, tailer: Tailer) -> None:
        self._tailer = tailer
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="oxcart-tail", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises the error that ended the thread, if one did."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stops the thread."""
        self._stop.set()
        self._thread.join(10)

    def _run(self) -> None:
        try:
            self._tailer.run(self._stop)
        except Exception as error:
            self._error = error
