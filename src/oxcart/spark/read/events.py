"""The event streams of queues as a stream of Spark: planned on the driver, read by tasks.

An offset is one position per stream, ``{"emails": {"id": …, "n": …}, "emails:ox:attempts": …}``. Planning
measures streams on the server and fetches no entries. A task opens its own connection and reads one piece.
All streams share the bound of a batch fairly.
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

from oxcart.broker.export import EVENTS
from oxcart.model.errors import OxcartError, ValidationError
from oxcart.spark.lake.bronze import file_rows, write_rows
from oxcart.spark.lake.versions import Lake
from oxcart.spark.options import QueueSelection, ServerAddress
from oxcart.spark.read.connection import Connection, split_key, stream_key
from oxcart.spark.read.entries import counts_row, lost_row, page_rows
from oxcart.spark.read.position import Position, order, read_position
from oxcart.spark.read.spool import Segment, Spool, place, position_of, read_segment
from oxcart.spark.read.stream import STRIDE, Lost, Piece

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows per batch, unless the option ``maxRowsPerBatch`` is set.
MAX_ROWS = 500_000
#: Pieces per task, so that tasks are not too small.
PIECES_PER_TASK = 25
#: Records that are added while events are planned, at most.
MOST_LATE = 10 * STRIDE
#: Seconds between looks for new queues of a pattern.
DISCOVER_EVERY = 30.0
_MINUTE = 60_000

Offset = dict[str, Position]


@dataclass
class Slice(InputPartition):
    """A task: a piece of a stream, and perhaps a sample of the queue's lengths.

    With ``files`` the task reads segments of a spool.
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


@dataclass
class Bundle(InputPartition):
    """A task: slices that are read one after the other.

    Streams with few new entries share a task, so that a hundred queues do not make a hundred tasks and files.
    """

    slices: tuple[Slice, ...]

    @property
    def value(self) -> Any:
        """What Spark's own partitions carry; unused."""
        return None


class EventReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads event streams for ``spark.readStream.format("oxcart")``.

    Args:
        address: Where the server is.
        selection: Which queues.
        starting: ``earliest``, ``latest``, or an offset as JSON.
        max_rows: How many rows a batch has at most.
        attempts: Whether to read the attempt records too.
        samples: Whether to add a sample of every queue's lengths each minute.
        spool: The folder of a tailer's spool, which is then read instead of the server.
        lake: The folder of a lake. Tasks then write their rows into files of it, and return the files.
    """

    def __init__(
        self,
        address: ServerAddress,
        selection: QueueSelection,
        *,
        starting: str = "earliest",
        max_rows: int = MAX_ROWS,
        attempts: bool = True,
        samples: bool = False,
        spool: str | None = None,
        lake: str | None = None,
    ) -> None:
        self._address = address
        self._selection = selection
        self._starting = starting
        self._max_rows = max_rows
        self._suffixes = address.suffixes if attempts else (EVENTS,)
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
        """Returns where a query without a checkpoint begins."""
        if self._starting == "earliest":
            return {}
        if self._starting == "latest":
            with Connection(self._address) as connection:
                return _dump({key: connection.stream(key).end() for key in self._keys(connection, {})})
        return _dump(read_offset(json.loads(self._starting)))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Returns the bound of a batch."""
        return ReadMaxRows(self._max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Notes where all streams end now: a run with ``availableNow`` stops there."""
        if self._spool is not None:
            ends = {key: self._spool.end(key) for key in self._spool.streams()}
            self._spool_target = {key: at for key, at in ends.items() if at is not None}
            return
        with Connection(self._address) as connection:
            keys = self._keys(connection, {})
            self._target = {key: connection.stream(key).end().id for key in keys}
        self._target_minute = _minute()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Plans the next batch; returns where it ends."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else 1 << 62
        begin = read_offset(start)
        if self._spool is not None:
            end, slices = self._plan_spool(self._spool, begin, most)
        else:
            end, slices = (self._ahead and self._ahead.of(begin, most)) or self._plan_now(begin, most)
            # A full batch means that there is more: the next is planned while this one is read.
            full = sum(_length(one) for one in slices) >= most
            self._ahead = _Ahead(self._plan_now, end, most) if full else None
        made = _dump(end)
        self._planned = (_text(start), _text(made), slices)
        return made if slices else start

    def _plan_now(self, begin: Offset, most: int) -> tuple[Offset, list[Slice]]:
        with Connection(self._address) as connection:
            return self._plan(connection, begin, most)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Returns where the streams end now, for Spark's progress reports."""
        try:
            with Connection(self._address) as connection:
                return _dump({key: connection.stream(key).end() for key in self._keys(connection, {})})
        except OxcartError:
            return None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Returns the tasks of a batch."""
        if self._planned is not None and self._planned[:2] == (_text(start), _text(end)):
            return list(_bundles(self._planned[2]))
        # Of a batch that was planned before a restart the end is known, but not the pieces.
        begin = read_offset(start)
        slices = []
        for key, through in read_offset(end).items():
            after = begin.get(key, Position())
            if after != through:
                queue, suffix = split_key(key)
                files = () if self._spool is None else _files(self._spool, key, after, through)
                slices.append(Slice(queue, suffix, after, through, through.minute > after.minute, files))
        return list(_bundles(slices))

    def commit(self, end: dict[str, Any]) -> None:
        """Deletes segments of the spool that have been read; the server trims streams by itself."""
        if self._spool is not None:
            self._spool.forget(read_offset(end))

    def stop(self) -> None:
        """Nothing is held open."""

    def _plan(self, connection: Connection, begin: Offset, most: int) -> tuple[Offset, list[Slice]]:
        keys = self._keys(connection, begin)
        end = {key: begin.get(key, Position()) for key in keys}
        pieces: dict[str, list[Piece]] = {key: [] for key in keys}
        events = [key for key in keys if split_key(key)[1] == EVENTS]
        records = [key for key in keys if split_key(key)[1] != EVENTS]
        # An event and the record of its attempt have the same id and go into the same batch. So records are
        # planned further than events; where they cannot be, events wait for them.
        third = max(1, most // 3)
        behind, left = self._share(connection, records, third, end, pieces)
        self._share(connection, events, max(1, most - third + left), end, pieces)
        for key in [key for key in records if key not in behind]:
            if self._further(connection, key, MOST_LATE, end, pieces) >= MOST_LATE:
                behind.append(key)
        for key in behind:
            queue = split_key(key)[0]
            if queue not in pieces:
                continue
            kept = [piece for piece in pieces[queue] if order(piece.through.id) <= order(end[key].id)]
            pieces[queue] = kept
            end[queue] = kept[-1].through if kept else begin.get(queue, Position())
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
        # A stream without entries gets no position yet: its queue may not exist.
        return {key: at for key, at in end.items() if at.life or key in begin}, slices

    def _share(
        self, connection: Connection, keys: list[str], most: int, end: Offset, pieces: dict[str, list[Piece]]
    ) -> tuple[list[str], int]:
        """Plans streams fairly; returns the streams with more entries, and the rest of the bound."""
        open_keys, left = list(keys), most
        while open_keys and left > 0:
            share = max(STRIDE, left // len(open_keys))
            for key in list(open_keys):
                most_here = min(share, left)
                found = self._further(connection, key, most_here, end, pieces)
                left -= found
                if found < most_here:
                    open_keys.remove(key)
                if left <= 0:
                    break
        return open_keys, max(0, left)

    def _further(
        self, connection: Connection, key: str, most: int, end: Offset, pieces: dict[str, list[Piece]]
    ) -> int:
        """Plans the next entries of a stream; returns how many: fewer than ``most`` where it ends."""
        found = connection.stream(key).plan(end[key], most, self._until(key))
        if not found:
            return 0
        before, end[key] = end[key], found[-1].through
        pieces[key] += found
        return end[key].n - (before.n if before.life == end[key].life else 0)

    def _plan_spool(self, spool: Spool, begin: Offset, most: int) -> tuple[Offset, list[Slice]]:
        end, slices, left = dict(begin), [], most
        for key in spool.streams():
            queue, suffix = split_key(key)
            if suffix != EVENTS or queue not in self._selection.pick([queue]):
                continue
            # Events are listed before records, which the tailer writes first: so all their records are there.
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
        """Plans the next segments of a stream; returns them and where they end."""
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
        """Segments up to the target of a run with ``availableNow``."""
        target = None if self._spool_target is None else self._spool_target.get(key)
        return [segment for segment in segments if target is None or segment.order <= place(target)]

    def _until(self, key: str) -> str:
        return "+" if self._target is None else self._target.get(key, "0-1")

    def _keys(self, connection: Connection, begin: Offset) -> list[str]:
        now = time.monotonic()
        if self._queues is not None and now - self._queues[0] < DISCOVER_EVERY:
            queues = self._queues[1]
        else:
            queues = connection.queues(self._selection)
            self._queues = (now, queues)
        known = {stream_key(queue, suffix) for queue in queues for suffix in self._suffixes}
        return sorted({*known, *begin})

    # -- in a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a task, or the files that they were written to."""
        assert isinstance(partition, Bundle)
        rows = self._rows(partition)
        return rows if self._lake is None else file_rows(write_rows(Lake(self._lake), rows))

    def _rows(self, partition: Bundle) -> Iterator[pa.RecordBatch]:
        with contextlib.ExitStack() as opened:
            connection: Connection | None = None
            for one in partition.slices:
                if one.files:
                    for path in one.files:
                        yield from read_segment(Path(path), one.after)
                    continue
                if connection is None:
                    connection = opened.enter_context(Connection(self._address))
                yield from _slice_rows(connection, one)


def _slice_rows(connection: Connection, one: Slice) -> Iterator[pa.RecordBatch]:
    """The rows of a slice, from the server."""
    queue, suffix = one.queue, one.suffix
    if one.after.n != one.through.n or one.after.life != one.through.life:
        stream = connection.stream(stream_key(queue, suffix))
        for part in stream.read(Piece(one.after, one.through)):
            if isinstance(part, Lost):
                yield lost_row(part, queue, suffix, time.time_ns() // 1_000_000)
            else:
                yield page_rows(part, queue, suffix)
    if one.sample:
        now = time.time_ns() // 1_000_000
        yield counts_row(connection.counts(queue), queue, now, one.through.id)


class _Ahead:
    """A plan for the next batch, made in a thread of its own.

    Args:
        plan: Makes the plan.
        begin: Where the batch begins.
        most: The bound of the batch.
    """

    def __init__(
        self, plan: Callable[[Offset, int], tuple[Offset, list[Slice]]], begin: Offset, most: int
    ) -> None:
        self._asked = (begin, most)
        self._made: tuple[Offset, list[Slice]] | None = None
        self._thread = threading.Thread(target=self._run, args=(plan,), daemon=True)
        self._thread.start()

    def of(self, begin: Offset, most: int) -> tuple[Offset, list[Slice]] | None:
        """Returns the plan if begin and bound fit and it is full; one that is not full may be longer now."""
        self._thread.join()
        if self._made is None or self._asked != (begin, most):
            return None
        return self._made if sum(_length(one) for one in self._made[1]) >= most else None

    def _run(self, plan: Callable[[Offset, int], tuple[Offset, list[Slice]]]) -> None:
        with contextlib.suppress(Exception):  # `latestOffset` plans again, and raises
            self._made = plan(*self._asked)


def read_offset(value: Mapping[str, Any]) -> Offset:
    """Reads an offset as Spark keeps it.

    Raises:
        ValidationError: It is no offset of this source.
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
    """The paths of the segments between two positions."""
    return tuple(
        str(segment.path) for segment in spool.segments(key) if place(after) < segment.order <= place(through)
    )


def replace_minute(at: Position, minute: int) -> Position:
    """Returns the same position with another minute."""
    return Position(at.id, at.n, at.life, at.mark, minute)


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Joins neighbouring pieces, so many for a task."""
    return [
        Piece(pieces[i].after, pieces[min(i + PIECES_PER_TASK, len(pieces)) - 1].through)
        for i in range(0, len(pieces), PIECES_PER_TASK)
    ]


def _bundles(slices: list[Slice]) -> Iterator[Bundle]:
    """Slices in tasks of about the size of a full one, those of a queue beside each other."""
    waiting: list[Slice] = []
    length = 0
    for one in slices:
        if waiting and length + _length(one) > STRIDE * PIECES_PER_TASK:
            yield Bundle(tuple(waiting))
            waiting, length = [], 0
        waiting.append(one)
        length += _length(one)
    if waiting:
        yield Bundle(tuple(waiting))


def _length(one: Slice) -> int:
    """About how many entries a slice has."""
    return max(1, one.through.n - (one.after.n if one.through.life == one.after.life else 0))


def _dump(offset: Offset) -> dict[str, Any]:
    return {key: at.to_json() for key, at in sorted(offset.items())}


def _text(offset: Mapping[str, Any]) -> str:
    return json.dumps(offset, sort_keys=True)


def _minute() -> int:
    return time.time_ns() // 1_000_000 // _MINUTE
