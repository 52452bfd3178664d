"""The event streams of queues as Spark's stream: planned on the driver, read by tasks.

An offset is one position per stream, ``{"emails": {"id": …, "n": …}, "emails:ox:attempts": …}``. Planning
measures streams where they lie and ships no entries; a task opens its own connection and reads one piece. A
batch has a bound, shared fairly by all streams.

May touch: the server, reads only; and a lake's folder, where the rows shall be written by the tasks.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from oxcart.broker.connection import Server
from oxcart.model.errors import OxcartError, ValidationError
from oxcart.spark.access import Access, Choice, chosen
from oxcart.spark.bronze import told, write_rows
from oxcart.spark.entries import counts_row, lost_row, page_rows
from oxcart.spark.lake import Lake
from oxcart.spark.position import Position, order, read_position
from oxcart.spark.spool import Segment, Spool, place, position_of, read_segment
from oxcart.spark.stream import EVENTS, STRIDE, Lost, Piece
from oxcart.spark.streams import Streams, split_key, stream_key

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows per batch unless the option ``maxRowsPerBatch`` says otherwise.
MAX_ROWS = 500_000
#: Pieces that one task reads, so that tasks are not too small.
PIECES_PER_TASK = 25
#: Records that come while events are planned, at most.
MOST_LATE = 10 * STRIDE
#: Seconds between looks for new queues of a pattern.
DISCOVER_EVERY = 30.0
_MINUTE = 60_000

Offset = dict[str, Position]


@dataclass
class Slice(InputPartition):
    """What one task reads: a piece of a stream, and perhaps a sample of the queue's lengths.

    With ``files`` it is segments of a spool.
    """

    queue: str
    suffix: str
    after: Position
    through: Position
    sample: bool = False
    files: tuple[str, ...] = ()

    @property
    def value(self) -> Any:
        """What Spark's own partitions carry; unused."""
        return None


class EventReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads event streams for ``spark.readStream.format("oxcart")``.

    Args:
        access: Where the server is.
        choice: Which queues.
        starting: ``earliest``, ``latest``, or an offset as JSON.
        max_rows: How many rows a batch has at most.
        attempts: Whether to read the attempt records too.
        samples: Whether to add a sample of every queue's lengths each minute.
        spool: The folder of a tailer's spool, which is then read instead of the server.
        lake: The folder of a lake. Tasks then write their rows into files of it, and tell of the files.
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
        spool: str | None = None,
        lake: str | None = None,
    ) -> None:
        self._access = access
        self._choice = choice
        self._starting = starting
        self._max_rows = max_rows
        self._suffixes = access.layout().suffixes if attempts else (EVENTS,)
        self._samples = samples
        self._spool = Spool(spool) if spool else None
        self._lake = lake
        self._target: Mapping[str, str] | None = None
        self._spool_target: Offset | None = None
        self._target_minute = 0
        self._planned: tuple[str, str, list[Slice]] | None = None
        self._ahead: _Ahead | None = None
        self._queues: tuple[float, list[str]] | None = None

    # -- on the driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a query without a checkpoint begins."""
        if self._starting == "earliest":
            return {}
        if self._starting == "latest":
            with Streams(self._access) as streams:
                return _dump({key: streams.at(key).end() for key in self._keys(streams.server, {})})
        return _dump(read_offset(json.loads(self._starting)))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The bound of a batch."""
        return ReadMaxRows(self._max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Notes where all streams end now: a run with ``availableNow`` goes so far and no further."""
        if self._spool is not None:
            ends = {key: self._spool.end(key) for key in self._spool.streams()}
            self._spool_target = {key: at for key, at in ends.items() if at is not None}
            return
        with Streams(self._access) as streams:
            keys = self._keys(streams.server, {})
            self._target = {key: streams.at(key).end().id for key in keys}
        self._target_minute = _minute()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far the next batch goes."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else 1 << 62
        begin = read_offset(start)
        if self._spool is not None:
            end, slices = self._plan_spool(self._spool, begin, most)
        else:
            end, slices = (self._ahead and self._ahead.of(begin, most)) or self._plan_now(begin, most)
            # Where a batch is full there is more: the next is planned while this one is read.
            full = sum(_length(one) for one in slices) >= most
            self._ahead = _Ahead(self._plan_now, end, most) if full else None
        made = _dump(end)
        self._planned = (_text(start), _text(made), slices)
        return made if slices else start

    def _plan_now(self, begin: Offset, most: int) -> tuple[Offset, list[Slice]]:
        with Streams(self._access) as streams:
            return self._plan(streams, begin, most)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Where the streams end now, for Spark's progress reports."""
        try:
            with Streams(self._access) as streams:
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
                files = () if self._spool is None else _files(self._spool, key, after, through)
                slices.append(Slice(queue, suffix, after, through, through.minute > after.minute, files))
        return list(slices)

    def commit(self, end: dict[str, Any]) -> None:
        """Deletes what has been read from the spool; the streams forget by themselves."""
        if self._spool is not None:
            self._spool.forget(read_offset(end))

    def stop(self) -> None:
        """Nothing is held open."""

    def _plan(self, streams: Streams, begin: Offset, most: int) -> tuple[Offset, list[Slice]]:
        keys = self._keys(streams.server, begin)
        end = {key: begin.get(key, Position()) for key in keys}
        pieces: dict[str, list[Piece]] = {key: [] for key in keys}
        told = [key for key in keys if split_key(key)[1] == EVENTS]
        records = [key for key in keys if split_key(key)[1] != EVENTS]
        # An event and the record of its attempt have the same id. No batch has the one without the other:
        # records are read further than events, and where they cannot be, events wait for them.
        third = max(1, most // 3)
        behind, left = self._share(streams, records, third, end, pieces)
        self._share(streams, told, max(1, most - third + left), end, pieces)
        for key in [key for key in records if key not in behind]:
            if self._further(streams, key, MOST_LATE, end, pieces) >= MOST_LATE:
                behind.append(key)
        for key in behind:
            events = split_key(key)[0]
            if events not in pieces:
                continue
            kept = [piece for piece in pieces[events] if order(piece.through.id) <= order(end[key].id)]
            pieces[events] = kept
            end[events] = kept[-1].through if kept else begin.get(events, Position())
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

    def _share(
        self, streams: Streams, keys: list[str], most: int, end: Offset, pieces: dict[str, list[Piece]]
    ) -> tuple[list[str], int]:
        """Plans streams fairly; returns those of which more could be read, and what is left of the bound."""
        open_keys, left = list(keys), most
        while open_keys and left > 0:
            share = max(STRIDE, left // len(open_keys))
            for key in list(open_keys):
                asked = min(share, left)
                found = self._further(streams, key, asked, end, pieces)
                left -= found
                if found < asked:
                    open_keys.remove(key)
                if left <= 0:
                    break
        return open_keys, max(0, left)

    def _further(
        self, streams: Streams, key: str, most: int, end: Offset, pieces: dict[str, list[Piece]]
    ) -> int:
        """Plans the next entries of a stream; returns how many: fewer than asked for where it ends."""
        found = streams.at(key).plan(end[key], most, self._until(key))
        if not found:
            return 0
        before, end[key] = end[key], found[-1].through
        pieces[key] += found
        return end[key].n - (before.n if before.life == end[key].life else 0)

    def _plan_spool(self, spool: Spool, begin: Offset, most: int) -> tuple[Offset, list[Slice]]:
        end, slices, left = dict(begin), [], most
        for key in spool.streams():
            queue, suffix = split_key(key)
            if suffix != EVENTS or queue not in self._choice.pick([queue]):
                continue
            # Listed before the records, which the tailer writes first: so the records are all there.
            listed = spool.segments(key)
            until = None
            for other in (stream_key(queue, suffix) for suffix in self._suffixes if suffix != EVENTS):
                more = spool.segments(other)
                made, at = self._spooled(other, more, begin, max(1, left // 3), None)
                slices += made
                left -= sum(_length(one) for one in made)
                if at.life:
                    end[other] = at
                if any(segment.order > place(at) for segment in self._reachable(other, more)):
                    until = at.id
            made, at = self._spooled(key, listed, begin, left, until)
            slices += made
            left -= sum(_length(one) for one in made)
            if at.life:
                end[key] = at
        return end, slices

    def _spooled(
        self, key: str, segments: list[Segment], begin: Offset, most: int, until: str | None
    ) -> tuple[list[Slice], Position]:
        """The next segments of a stream, and where they end."""
        queue, suffix = split_key(key)
        at = begin.get(key, Position())
        slices: list[Slice] = []
        for segment in self._reachable(key, segments):
            if most <= 0:
                break
            if segment.order > place(at):
                through = position_of(segment.path)
                if until is not None and order(through.id) > order(until):
                    break
                made = Slice(queue, suffix, at, through, files=(str(segment.path),))
                most -= _length(made)
                at = through
                if slices and _length(slices[-1]) < STRIDE * PIECES_PER_TASK:
                    made = replace(made, after=slices[-1].after, files=(*slices.pop().files, *made.files))
                slices.append(made)
        return slices, at

    def _reachable(self, key: str, segments: list[Segment]) -> list[Segment]:
        """Segments up to where a run with ``availableNow`` goes."""
        target = None if self._spool_target is None else self._spool_target.get(key)
        return [segment for segment in segments if target is None or segment.order <= place(target)]

    def _until(self, key: str) -> str:
        return "+" if self._target is None else self._target.get(key, "0-1")

    def _keys(self, server: Server, begin: Offset) -> list[str]:
        now = time.monotonic()
        if self._queues is not None and now - self._queues[0] < DISCOVER_EVERY:
            queues = self._queues[1]
        else:
            queues = chosen(self._access, self._choice, server)
            self._queues = (now, queues)
        known = {stream_key(queue, suffix) for queue in queues for suffix in self._suffixes}
        return sorted({*known, *begin})

    # -- in a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a slice, or the files that they are in now."""
        assert isinstance(partition, Slice)
        rows = self._rows(partition)
        return rows if self._lake is None else told(write_rows(Lake(self._lake), partition.queue, rows))

    def _rows(self, partition: Slice) -> Iterator[pa.RecordBatch]:
        if partition.files:
            for path in partition.files:
                yield from read_segment(Path(path), partition.after)
            return
        with Streams(self._access) as streams:
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


class _Ahead:
    """A plan for the next batch, made in a thread of its own.

    Args:
        plan: Makes it.
        begin: Where the batch begins.
        most: Its bound.
    """

    def __init__(
        self, plan: Callable[[Offset, int], tuple[Offset, list[Slice]]], begin: Offset, most: int
    ) -> None:
        self._asked = (begin, most)
        self._made: tuple[Offset, list[Slice]] | None = None
        self._thread = threading.Thread(target=self._run, args=(plan,), daemon=True)
        self._thread.start()

    def of(self, begin: Offset, most: int) -> tuple[Offset, list[Slice]] | None:
        """The plan, if it is what is asked for and full: another one could be longer by now."""
        self._thread.join()
        if self._made is None or self._asked != (begin, most):
            return None
        return self._made if sum(_length(one) for one in self._made[1]) >= most else None

    def _run(self, plan: Callable[[Offset, int], tuple[Offset, list[Slice]]]) -> None:
        with contextlib.suppress(Exception):  # then it is planned when it is asked for, and fails there
            self._made = plan(*self._asked)


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


def _files(spool: Spool, key: str, after: Position, through: Position) -> tuple[str, ...]:
    """The segments between two positions."""
    return tuple(
        str(segment.path) for segment in spool.segments(key) if place(after) < segment.order <= place(through)
    )


def replace_minute(at: Position, minute: int) -> Position:
    """The same position with another minute."""
    return Position(at.id, at.n, at.life, at.mark, minute)


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Pieces of neighbouring strides made one, as many as a task shall read."""
    return [
        Piece(pieces[i].after, pieces[min(i + PIECES_PER_TASK, len(pieces)) - 1].through)
        for i in range(0, len(pieces), PIECES_PER_TASK)
    ]


def _length(one: Slice) -> int:
    """About how many entries a slice has."""
    return max(1, one.through.n - (one.after.n if one.through.life == one.after.life else 0))


def _dump(offset: Offset) -> dict[str, Any]:
    return {key: at.to_json() for key, at in sorted(offset.items())}


def _text(offset: Mapping[str, Any]) -> str:
    return json.dumps(offset, sort_keys=True)


def _minute() -> int:
    return time.time_ns() // 1_000_000 // _MINUTE
