"""The lag of a pipeline: how far bronze is behind, and how long until an entry would be lost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from oxcart.broker.export import START
from oxcart.spark.lake.versions import Lake
from oxcart.spark.options import QueueSelection, ServerAddress
from oxcart.spark.read.connection import Connection, split_key, stream_key
from oxcart.spark.read.position import Position, is_recreated, read_position
from oxcart.spark.read.stream import STRIDE, Stream

#: Rates are measured over the last so many ms.
_LATELY = 60_000


class Standing(msgspec.Struct, frozen=True):
    """The lag of one stream of a pipeline.

    Attributes:
        queue: The queue.
        stream: Which of its streams.
        read: Entries in bronze.
        lag: Entries that bronze lacks; None if the stream was recreated.
        lag_ms: The age of the oldest of them; 0 for none.
        kept: How many entries the queue keeps.
        lost_in_ms: How long until an entry is trimmed unread, if the pipeline stops and entries arrive as in
            the last minute; None where none arrived.
        rate: Entries that arrived per second, over the last minute.
        rows_s: Rows of the queue that reached bronze per second, over the last minute.
    """

    queue: str
    stream: str
    read: int
    lag: int | None
    lag_ms: int
    kept: int
    lost_in_ms: int | None
    rate: float
    rows_s: float


def _now() -> int:
    return time.time_ns() // 1_000_000


def standings(
    address: ServerAddress, lake: Lake, name: str = "main", *, clock: Callable[[], int] = _now
) -> list[Standing]:
    """Returns the lag of every stream of a pipeline.

    Streams of attached queues are among them before their first batch is published: nothing of them is in
    bronze, and all their entries are the lag.
    """
    offsets = lake.head().marks.get(f"ingest:{name}", {})
    now = clock()
    brought = rows_lately(lake, now)
    found = []
    with Connection(address) as connection:
        unread = (key for key in _attached(connection, address, name) if key not in offsets)
        known = {key: read_position(value) for key, value in offsets.items()}
        for key, at in sorted((known | {key: Position() for key in unread}).items()):
            queue, suffix = split_key(key)
            stream = connection.stream(key)
            next_one = stream.measure(at.id, most=1)
            facts = next_one.facts
            kept = connection.kept(queue)
            lag = None if is_recreated(at, facts) else max(0, facts.added - at.n)
            rate = _rate(stream, now)
            left = int(max(0, kept - (lag or 0)) * 1000 / rate) if rate else None
            found.append(
                Standing(
                    queue,
                    suffix,
                    at.n,
                    lag,
                    max(0, now - int(next_one.last.partition("-")[0])) if next_one.count else 0,
                    kept,
                    left,
                    round(rate, 1),
                    round(brought.get(queue, 0) * 1000 / _LATELY, 1),
                )
            )
    return found


def _attached(connection: Connection, address: ServerAddress, name: str) -> Iterator[str]:
    """The streams of queues that a pipeline of this name is attached to, and that have entries."""
    for queue in connection.queues(QueueSelection(pattern="*")):
        if name in connection.run(connection.export.readers(queue)):
            for suffix in address.suffixes:
                key = stream_key(queue, suffix)
                if connection.stream(key).measure(START, most=1).count:
                    yield key


def _rate(stream: Stream, now: int) -> float:
    """Entries per second in the last minute; where there are very many, of the first ones of it."""
    since = now - _LATELY
    found = stream.measure(f"{since}-0", most=STRIDE)
    if not found.count:
        return 0.0
    span = int(found.last.partition("-")[0]) - since if found.count == STRIDE else _LATELY
    return found.count * 1000 / max(1, span)


def rows_lately(lake: Lake, now: int) -> dict[str, int]:
    """Returns how many rows reached bronze in the last minute, by queue."""
    found: Counter[str] = Counter()
    for number in reversed(lake.numbers()):
        snapshot = lake.snapshot(number)
        if snapshot.at_ms < now - _LATELY:
            break
        found.update(snapshot.rows)
    return dict(found)
