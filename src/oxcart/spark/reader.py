"""The event streams of queues as Spark's stream: planned on the driver, read by tasks.

An offset is one position per stream, ``{"emails": {"id": …, "n": …}, "emails:ox:attempts": …}``; a colon
cannot be part of a queue's name. Planning measures streams where they lie and ships no entries; a task opens
its own connection and reads one piece. A batch has a bound, shared fairly by all streams.

May touch: the server; reads only.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from oxcart.broker.bullmq.broker import STATES
from oxcart.broker.bullmq.keys import Keys
from oxcart.broker.connection import Server
from oxcart.cli.discovery import find_queues
from oxcart.model.errors import OxcartError, ValidationError
from oxcart.spark.access import Access, Choice
from oxcart.spark.entries import counts_row, lost_row, page_rows
from oxcart.spark.position import Position, read_position
from oxcart.spark.stream import ATTEMPTS, EVENTS, STRIDE, Lost, Piece, Stream
from oxcart.spark.wire import Wire

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows per batch unless the option ``maxRowsPerBatch`` says otherwise.
MAX_ROWS = 200_000
#: Pieces that one task reads, so that tasks are not too small.
PIECES_PER_TASK = 10
#: Seconds between looks for new queues of a pattern.
DISCOVER_EVERY = 30.0
_MINUTE = 60_000
_LISTS = ("wait", "paused", "active")

Offset = dict[str, Position]


@dataclass
class Slice(InputPartition):
    """What one task reads: a piece of a stream, and perhaps a sample of the queue's lengths."""

    queue: str
    suffix: str
    after: Position
    through: Position
    sample: bool = False

    @property
    def value(self) -> Any:
        """What Spark's own partitions carry; unused."""
        return None


def stream_key(queue: str, suffix: str) -> str:
    """The name of a stream in an offset."""
    return queue if suffix == EVENTS else f"{queue}:{suffix}"


def split_key(key: str) -> tuple[str, str]:
    """Queue and suffix of a stream's name in an offset."""
    queue, _, suffix = key.partition(":")
    return queue, suffix or EVENTS


class EventReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads event streams for ``spark.readStream.format("oxcart")``.

    Args:
        access: Where the server is.
        choice: Which queues.
        starting: ``earliest``, ``latest``, or an offset as JSON.
        max_rows: How many rows a batch has at most.
        attempts: Whether to read the attempt records too.
        samples: Whether to add a sample of every queue's lengths each minute.
    """

    def __init__(
        self,
        access: Access,
        choice: Choice,
        *,
        starting: str = "earliest",
        max_rows: int = MAX_ROWS,
        attempts: bool = True,
        samples: bool = False,
    ) -> None:
        self._access = access
        self._choice = choice
        self._starting = starting
        self._max_rows = max_rows
        self._suffixes = (EVENTS, ATTEMPTS) if attempts else (EVENTS,)
        self._samples = samples
        self._target: Mapping[str, str] | None = None
        self._target_minute = 0
        self._planned: tuple[str, str, list[Slice]] | None = None
        self._queues: tuple[float, list[str]] | None = None

    # -- on the driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a query without a checkpoint begins."""
        if self._starting == "earliest":
            return {}
        if self._starting == "latest":
            with _Streams(self._access) as streams:
                return _dump({key: streams.at(key).end() for key in self._keys(streams.server, {})})
        return _dump(read_offset(json.loads(self._starting)))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The bound of a batch."""
        return ReadMaxRows(self._max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Notes where all streams end now: a run with ``availableNow`` goes so far and no further."""
        with _Streams(self._access) as streams:
            keys = self._keys(streams.server, {})
            self._target = {key: streams.at(key).end().id for key in keys}
        self._target_minute = _minute()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far the next batch goes."""
        begin = read_offset(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else 1 << 62
        with _Streams(self._access) as streams:
            end, slices = self._plan(streams, begin, most)
        made = _dump(end)
        self._planned = (_text(start), _text(made), slices)
        return made if slices else start

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Where the streams end now, for Spark's progress reports."""
        try:
            with _Streams(self._access) as streams:
                return _dump({key: streams.at(key).end() for key in self._keys(streams.server, {})})
        except OxcartError:
            return None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a batch."""
        if self._planned is not None and self._planned[:2] == (_text(start), _text(end)):
            return list(self._planned[2])
        # A batch that was planned before a restart: its end is known, its pieces are not.
        begin = read_offset(start)
        slices = []
        for key, through in read_offset(end).items():
            after = begin.get(key, Position())
            if after != through:
                queue, suffix = split_key(key)
                slices.append(Slice(queue, suffix, after, through, through.minute > after.minute))
        return list(slices)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the streams forget by themselves."""

    def stop(self) -> None:
        """Nothing is held open."""

    def _plan(self, streams: _Streams, begin: Offset, most: int) -> tuple[Offset, list[Slice]]:
        keys = self._keys(streams.server, begin)
        end = {key: begin.get(key, Position()) for key in keys}
        pieces: dict[str, list[Piece]] = {key: [] for key in keys}
        open_keys, left = list(keys), most
        while open_keys and left > 0:
            share = max(STRIDE, left // len(open_keys))
            for key in list(open_keys):
                found = streams.at(key).plan(end[key], min(share, left), self._until(key))
                if found:
                    pieces[key] += found
                    left -= found[-1].through.n - (
                        end[key].n if found[-1].through.life == end[key].life else 0
                    )
                    end[key] = found[-1].through
                if not found or found[-1].through.n - found[-1].after.n < STRIDE:
                    open_keys.remove(key)
                if left <= 0:
                    break
        minute = _minute() if self._target is None else self._target_minute
        slices = []
        for key in keys:
            queue, suffix = split_key(key)
            made = [Slice(queue, suffix, piece.after, piece.through) for piece in _joined(pieces[key])]
            if self._samples and suffix == EVENTS and end[key].minute < minute and end[key].life:
                end[key] = replace_minute(end[key], minute)
                if made:
                    made[-1] = replace(made[-1], through=end[key], sample=True)
                else:
                    made = [Slice(queue, suffix, end[key], end[key], True)]
            slices += made
        # What nothing was read of has no place yet: it may be the name of a queue that is still to come.
        return {key: at for key, at in end.items() if at.life or key in begin}, slices

    def _until(self, key: str) -> str:
        return "+" if self._target is None else self._target.get(key, "0-1")

    def _keys(self, server: Server, begin: Offset) -> list[str]:
        now = time.monotonic()
        if self._choice.pattern is None:
            queues = list(self._choice.names)
        elif self._queues is not None and now - self._queues[0] < DISCOVER_EVERY:
            queues = self._queues[1]
        else:
            queues = self._choice.pick(asyncio.run(find_queues(server, self._access.prefix)))
            self._queues = (now, queues)
        known = {stream_key(queue, suffix) for queue in queues for suffix in self._suffixes}
        return sorted({*known, *begin})

    # -- in a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a slice."""
        assert isinstance(partition, Slice)
        with _Streams(self._access) as streams:
            queue, suffix = partition.queue, partition.suffix
            if partition.after.n != partition.through.n or partition.after.life != partition.through.life:
                stream = streams.at(stream_key(queue, suffix))
                for part in stream.read(Piece(partition.after, partition.through)):
                    if isinstance(part, Lost):
                        yield lost_row(part, queue, suffix, time.time_ns() // 1_000_000)
                    else:
                        yield page_rows(part, queue, suffix)
            if partition.sample:
                yield counts_row(streams.counts(queue), queue, time.time_ns() // 1_000_000)


class _Streams:
    """The streams of a server, on one connection per slot, for as long as the block lasts."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self.server = access.server()
        self._wires: dict[int | None, Wire] = {}

    def __enter__(self) -> _Streams:
        return self

    def __exit__(self, *exc: object) -> None:
        for wire in self._wires.values():
            wire.close()

    def at(self, key: str) -> Stream:
        queue, suffix = split_key(key)
        keys = self._access.keys(queue, self.server)
        return Stream(self._wire(keys), keys, suffix)

    def counts(self, queue: str) -> dict[str, int]:
        keys = self._access.keys(queue, self.server)
        commands = [("LLEN" if state in _LISTS else "ZCARD", keys.key(state)) for state in STATES]
        return dict(zip(STATES, self._wire(keys).pipeline(commands), strict=True))

    def _wire(self, keys: Keys) -> Wire:
        slot = keys.slot() if self.server.is_cluster else None
        if slot not in self._wires:
            self._wires[slot] = Wire(self.server, slot)
        return self._wires[slot]


def read_offset(value: Mapping[str, Any]) -> Offset:
    """An offset as Spark keeps it.

    Raises:
        ValidationError: It is none of ours.
    """
    try:
        return {key: read_position(at) for key, at in value.items()}
    except Exception as error:
        raise ValidationError(
            "offset",
            "one position per queue",
            value,
            "an offset of this source is one position per queue, like {'emails': {'id': '0-0', 'n': 0}}: "
            f"{error}",
        ) from error


def replace_minute(at: Position, minute: int) -> Position:
    """The same position with another minute."""
    return Position(at.id, at.n, at.life, at.mark, minute)


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Pieces of neighbouring strides made one, as many as a task shall read."""
    return [
        Piece(pieces[i].after, pieces[min(i + PIECES_PER_TASK, len(pieces)) - 1].through)
        for i in range(0, len(pieces), PIECES_PER_TASK)
    ]


def _dump(offset: Offset) -> dict[str, Any]:
    return {key: at.to_json() for key, at in sorted(offset.items())}


def _text(offset: Mapping[str, Any]) -> str:
    return json.dumps(offset, sort_keys=True)


def _minute() -> int:
    return time.time_ns() // 1_000_000 // _MINUTE
