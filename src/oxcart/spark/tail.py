"""The tailer: follows event streams closely, and puts what it reads into a local spool.

Redis forgets, and a batch of Spark takes its time to begin; so somebody must stand by. The tailer reads every
stream as it grows, renews the attachment of its queues (and says so when a Node constructor had set their
retention back), samples their lengths each minute, and writes rows of bronze into the spool. The source reads
the spool instead of the server when it is told of one; ordinals are the same, so that the two can take turns.

May touch: the server (reads, and attaches), and the spool's folder.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from oxcart.model.errors import BrokerError
from oxcart.spark.access import Access, Choice, chosen
from oxcart.spark.attach import KEEP, attach
from oxcart.spark.entries import counts_row, lost_row, page_rows
from oxcart.spark.position import Position, order, read_position
from oxcart.spark.spool import Spool
from oxcart.spark.stream import EVENTS, Lost
from oxcart.spark.streams import Streams, split_key, stream_key

log = logging.getLogger("oxcart.spark.tail")

#: Entries per pass and stream; also the most that a file holds.
MOST = 20_000
#: Seconds between renewals of the attachment.
RENEW_EVERY = 30.0
#: Looking for new queues may take this share of the time: a server with few keys is looked at all the time.
LOOKING = 0.05


class Tailer:
    """Fills a spool.

    Args:
        access: The server.
        choice: The queues.
        spool: The spool.
        name: The reader under whose name queues are attached.
        keep: Events that a queue shall keep.
        begin: Where to begin with streams that have no spool yet.
        clock: The time in ms.
    """

    def __init__(
        self,
        access: Access,
        choice: Choice,
        spool: Spool,
        *,
        name: str = "main",
        keep: int = KEEP,
        begin: Mapping[str, Any] | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._access = access
        self._choice = choice
        self._spool = spool
        self._name = name
        self._keep = keep
        self._begin = {key: read_position(at) for key, at in (begin or {}).items()}
        self._clock = clock
        self._positions: dict[str, Position] = {}
        self._queues: list[str] = []
        self._attached: set[str] = set()
        self._renewed = self._look_at = float("-inf")

    def run(self, stop: threading.Event, idle: float = 0.25) -> None:
        """Follows the streams until told to end. A server that is away is waited for."""
        while not stop.is_set():
            try:
                if self.step() < MOST:
                    stop.wait(idle)  # many small files would cost more than the delay
            except BrokerError as error:
                log.warning("tailing: %s", error)
                stop.wait(1.0)

    def step(self) -> int:
        """One pass over all streams; returns how many entries it read."""
        self._attach()
        read = 0
        with Streams(self._access) as streams:
            for queue in self._queues:
                # Records before their events: whoever finds an event in the spool finds its record there.
                until = streams.at(queue).end().id
                for suffix in self._access.layout().suffixes[1:]:
                    records = stream_key(queue, suffix)
                    found = self._follow(streams, records)
                    if found >= MOST:
                        until = min(until, self._position(records).id, key=order)
                    read += found
                read += self._follow(streams, queue, until)
        return read

    def _attach(self) -> None:
        """Attaches queues that are new, and all of them again every so often.

        A queue that comes up keeps few events and records no attempts until it is attached, so that nobody
        waits for the next renewal with it.
        """
        now = time.monotonic()
        renew = now - self._renewed > RENEW_EVERY
        server = self._access.server()
        if renew or now >= self._look_at:
            self._queues = chosen(self._access, self._choice, server)
            self._look_at = time.monotonic() + (time.monotonic() - now) / LOOKING
        for queue in self._queues:
            if not renew and queue in self._attached:
                continue
            made = attach(self._access, queue, self._name, keep=self._keep, server=server)
            if made is None:
                self._attached.discard(queue)
                continue
            if queue in self._attached and made.was_reset:
                log.warning(
                    "%s kept %d events, now %d: a Node Queue sets it back unless it passes skipMetasUpdate",
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

    def _follow(self, streams: Streams, key: str, until: str = "+") -> int:
        at = self._position(key)
        queue, suffix = split_key(key)
        stream = streams.at(key)
        pieces = stream.plan(at, MOST, until)
        now = self._clock()
        minute = now // 60_000
        batches: list[Any] = []
        through = pieces[-1].through if pieces else at
        for piece in pieces:
            for part in stream.read(piece):
                if isinstance(part, Lost):
                    batches.append(lost_row(part, queue, suffix, now))
                else:
                    batches.append(page_rows(part, queue, suffix))
        if suffix == EVENTS and through.life and through.minute < minute:
            batches.append(counts_row(streams.counts(queue), queue, now))
            through = Position(through.id, through.n, through.life, through.mark, minute)
        if batches:
            self._spool.write(key, through, batches)
            self._positions[key] = through
        return through.n - at.n if through.life == at.life else through.n


class Tailing:
    """A tailer in a thread of its own, from now until it is stopped. What ends it otherwise is not lost.

    Args:
        tailer: The tailer.
    """

    def __init__(self, tailer: Tailer) -> None:
        self._tailer = tailer
        self._stop = threading.Event()
        self._trouble: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="oxcart-tail", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises what ended it: nothing would be read any more, and nobody would know."""
        if self._trouble is not None:
            raise self._trouble

    def stop(self) -> None:
        """Ends it."""
        self._stop.set()
        self._thread.join(10)

    def _run(self) -> None:
        try:
            self._tailer.run(self._stop)
        except Exception as error:
            self._trouble = error
