"""Stream entries as rows: the schema of bronze, and Arrow batches of it.

Nothing of an entry is dropped. Known fields have columns; all others are a JSON object in ``extra``. An entry
that text cannot hold (bytes that are no UTF-8, a field that occurs twice) is also kept whole in ``raw``. Rows
of other kinds are gaps, streams that were recreated, and samples of the queue's lengths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from oxcart.spark.read.stream import Lost, Page

if TYPE_CHECKING:
    import pyarrow as pa

#: The columns of bronze with Spark's types.
COLUMNS: Mapping[str, str] = {
    "day": "date",
    "queue": "string",
    "stream": "string",
    "kind": "string",
    "life": "int",
    "ordinal": "bigint",
    "entry_id": "string",
    "at_ms": "bigint",
    "event": "string",
    "job_id": "string",
    "name": "string",
    "prev": "string",
    "due_ms": "bigint",
    "result": "string",
    "reason": "string",
    "data": "string",
    "attempts_made": "int",
    "extra": "string",
    "raw": "binary",
    "lost": "bigint",
    "cause": "string",
}
SCHEMA = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())

#: Kinds of rows. A `refill` is a lost event, restored from a job's record; `refilled` counts those of a gap.
ENTRY, GAP, RECREATED, COUNTS, REFILL, REFILLED = "entry", "gap", "recreated", "counts", "refill", "refilled"

#: Fields of the wire that have a column of their own; numbers among them are in `_NUMBERS`.
_TEXTS = {
    b"event": "event",
    b"jobId": "job_id",
    b"name": "name",
    b"prev": "prev",
    b"returnvalue": "result",
    b"failedReason": "reason",
    b"data": "data",
}
_NUMBERS = {b"delay": "due_ms", b"attemptsMade": "attempts_made"}
#: Numbers beyond these stay in `extra`: a delay has to end before the year 10 000, as a timestamp.
_BOUNDS = {"due_ms": 253_402_300_800_000, "attempts_made": 2**31}
_FILLED = (*_TEXTS.values(), *_NUMBERS.values(), "extra", "raw")
_json = msgspec.json.Encoder()
_msgpack = msgspec.msgpack.Encoder()
_EPOCH = date(1970, 1, 1)
_DAY_MS = 86_400_000


def day_of(at_ms: int) -> str:
    """Returns the day of a time in ms, in UTC."""
    return (_EPOCH + timedelta(days=at_ms // _DAY_MS)).isoformat()


def millis_of(entry_id: str) -> int:
    """Returns the time of a stream id in ms."""
    return int(entry_id.partition("-")[0])


def today(at_ms: int) -> str:
    """Returns the day of a wall-clock time in ms, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).date().isoformat()


@lru_cache(maxsize=4096)
def _shape(names: tuple[bytes, ...]) -> tuple[tuple[tuple[int, str], ...], tuple[int, ...], bool]:
    """For field names: (place, column) pairs, places without a column, and whether each name occurs once."""
    known, further = [], []
    for at, name in enumerate(names):
        if name in _TEXTS:
            known.append((at, _TEXTS[name]))
        else:
            further.append(at)
    return tuple(known), tuple(further), len(set(names)) == len(names)


def page_rows(page: Page, queue: str, stream: str) -> pa.RecordBatch:
    """Returns the rows of a page."""
    import pyarrow as pa

    entries = page.entries
    count = len(entries)
    columns: dict[str, list[Any]] = {name: [None] * count for name in _FILLED}
    ids = [entry[0] for entry in entries]
    for row, (_, fields) in enumerate(entries):
        names = tuple(fields[0::2])
        known, further, plain = _shape(names)
        for at, column in known:
            columns[column][row] = fields[2 * at + 1]
        if further:
            _further(columns, row, names, fields, further)
        if not plain:
            columns["raw"][row] = _msgpack.encode(fields)
    millis = [int(entry_id.partition(b"-")[0]) for entry_id in ids]
    arrays = {
        "day": pa.array([at // _DAY_MS for at in millis], pa.int32()).cast(pa.date32()),
        "queue": _constant(queue, count),
        "stream": _constant(stream, count),
        "kind": _constant(ENTRY, count),
        "life": pa.array([page.life] * count, pa.int32()),
        "ordinal": pa.array(range(page.first, page.first + count), pa.int64()),
        "entry_id": pa.array(ids, pa.binary()).cast(pa.string()),
        "at_ms": pa.array(millis, pa.int64()),
        "due_ms": pa.array(columns["due_ms"], pa.int64()),
        "attempts_made": pa.array(columns["attempts_made"], pa.int32()),
        "extra": pa.array(columns["extra"], pa.binary()).cast(pa.string()),
    }
    for name in _TEXTS.values():
        arrays[name] = _texts(columns[name], columns["raw"], entries)
    arrays["raw"] = pa.array(columns["raw"], pa.binary())
    for name, kind in (("lost", pa.int64()), ("cause", pa.string())):
        arrays[name] = pa.nulls(count, kind)
    return pa.RecordBatch.from_arrays([arrays[name] for name in COLUMNS], names=list(COLUMNS))


def lost_row(lost: Lost, queue: str, stream: str, now_ms: int) -> pa.RecordBatch:
    """Returns the row of a gap, or of a stream that was recreated.

    A gap belongs to the day of the last entry before it.
    """
    at_ms = millis_of(lost.after) or now_ms
    return rows_of(
        [
            {
                "day": at_ms // _DAY_MS,
                "queue": queue,
                "stream": stream,
                "kind": RECREATED if lost.last is None else GAP,
                "life": lost.life,
                "ordinal": lost.first,
                "entry_id": lost.after,
                "at_ms": at_ms,
                "lost": lost.count,
                "cause": lost.cause,
            }
        ]
    )


def counts_row(counts: Mapping[str, int], queue: str, now_ms: int, last_id: str) -> pa.RecordBatch:
    """Returns the row of a sample of a queue's lengths.

    Args:
        counts: The lengths.
        queue: The queue.
        now_ms: The time by the clock of this machine.
        last_id: The id of the last entry that was read. A clock that is behind the server's would date the
            sample before it, among rows that are settled, so that the whole day would be built again.
    """
    at_ms = max(now_ms, millis_of(last_id))
    return rows_of(
        [
            {
                "day": at_ms // _DAY_MS,
                "queue": queue,
                "stream": "events",
                "kind": COUNTS,
                "at_ms": at_ms,
                "data": _json.encode(counts).decode(),
            }
        ]
    )


def rows_of(rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Returns a batch of few rows; missing columns are null, and ``day`` is in days since 1970."""
    import pyarrow as pa

    kinds = {"date": pa.int32(), "int": pa.int32(), "bigint": pa.int64(), "binary": pa.binary()}
    arrays = []
    for name, kind in COLUMNS.items():
        made = pa.array([row.get(name) for row in rows], kinds.get(kind, pa.string()))
        arrays.append(made.cast(pa.date32()) if kind == "date" else made)
    return pa.RecordBatch.from_arrays(arrays, names=list(COLUMNS))


def _constant(text: str, count: int) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(text, pa.string()), count)


def _further(
    columns: dict[str, list[Any]],
    row: int,
    names: tuple[bytes, ...],
    fields: list[bytes],
    further: tuple[int, ...],
) -> None:
    """Writes numbers to their columns, and unknown fields to ``extra``."""
    unknown: dict[str, str] = {}
    for at in further:
        name, value = names[at], fields[2 * at + 1]
        column = _NUMBERS.get(name)
        if column is not None:
            number = _whole(value)
            if number is not None and abs(number) < _BOUNDS[column]:
                columns[column][row] = number
                continue
        try:
            unknown[name.decode()] = value.decode()
        except UnicodeDecodeError:
            unknown[name.decode(errors="replace")] = value.decode(errors="replace")
            columns["raw"][row] = _msgpack.encode(fields)
    if unknown:
        columns["extra"][row] = _json.encode(unknown)


def _whole(text: bytes) -> int | None:
    try:
        number = int(text) if text.isdigit() else int(float(text))  # Lua may have written 1.7e+12
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < 2**63 else None


def _texts(values: list[Any], raws: list[Any], entries: Sequence[Any]) -> pa.Array:
    """Decodes bytes; where they are no UTF-8 it repairs the text and keeps the entry whole."""
    import pyarrow as pa

    try:
        return pa.array(values, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        repaired = []
        for row, value in enumerate(values):
            try:
                repaired.append(None if value is None else value.decode())
            except UnicodeDecodeError:
                repaired.append(value.decode(errors="replace"))
                raws[row] = _msgpack.encode(entries[row][1])
        return pa.array(repaired, pa.string())
