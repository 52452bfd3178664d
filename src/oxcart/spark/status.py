"""How a pipeline stands: how far bronze is behind, and how long until something would be lost.

May touch: the server and the lake's manifests; no Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from oxcart.spark.access import Access
from oxcart.spark.lake import Lake
from oxcart.spark.position import is_recreated, read_position
from oxcart.spark.stream import STRIDE, Stream
from oxcart.spark.streams import Streams, split_key

#: The last so many ms tell how fast things go.
_LATELY = 60_000


class Standing(msgspec.Struct, frozen=True):
    """One stream of a pipeline.

    Attributes:
        queue: The queue.
        stream: Which of its streams.
        read: Entries in bronze.
        lag: Entries that are not yet there; None where the stream is another one now.
        lag_ms: How old the oldest of them is; 0 for none.
        kept: How many entries the queue keeps.
        lost_in_ms: How long until an entry is trimmed unread, if nobody reads and as many come as in the last
            minute; None where none came.
        rate: Entries that came a second, over the last minute.
        rows_s: Rows of the queue that were brought to bronze a second, over the last minute.
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
    access: Access, lake: Lake, name: str = "main", *, clock: Callable[[], int] = _now
) -> list[Standing]:
    """How every stream of a pipeline stands."""
    offsets = lake.head().marks.get(f"ingest:{name}", {})
    now = clock()
    brought = rows_lately(lake, now)
    found = []
    with Streams(access) as streams:
        for key, value in sorted(offsets.items()):
            queue, suffix = split_key(key)
            at = read_position(value)
            facts, unread, oldest = streams.at(key).measure(at.id, most=1)
            kept = streams.kept(queue)
            lag = None if is_recreated(at, facts) else max(0, facts.added - at.n)
            rate = _rate(streams.at(key), now)
            left = int(max(0, kept - (lag or 0)) * 1000 / rate) if rate else None
            found.append(
                Standing(
                    queue,
                    suffix,
                    at.n,
                    lag,
                    max(0, now - int(oldest.partition("-")[0])) if unread else 0,
                    kept,
                    left,
                    round(rate, 1),
                    round(brought.get(queue, 0) * 1000 / _LATELY, 1),
                )
            )
    return found


def _rate(stream: Stream, now: int) -> float:
    """Entries a second in the last minute; of the first ones of it where there are very many."""
    since = now - _LATELY
    _, count, last = stream.measure(f"{since}-0", most=STRIDE)
    if not count:
        return 0.0
    span = int(last.partition("-")[0]) - since if count == STRIDE else _LATELY
    return count * 1000 / max(1, span)


def rows_lately(lake: Lake, now: int) -> dict[str, int]:
    """Rows that were brought to bronze in the last minute, by queue."""
    found: dict[str, int] = {}
    for number in reversed(lake.numbers()):
        manifest = lake.manifest(number)
        if manifest.at_ms < now - _LATELY:
            break
        if manifest.why == "ingest":
            for file in manifest.add:
                found[file.queue] = found.get(file.queue, 0) + file.rows
    return found
