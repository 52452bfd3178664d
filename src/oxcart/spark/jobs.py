"""The jobs of queues as a table: what is on the server now, for ``spark.read.format("oxcart")``.

Planning lists ids, state by state in the direction in which jobs move, so that a job on its way is seen at
least once; an id that is seen twice counts where it was seen last. Filters on queue, state and the time of
the end are answered by the server's own indexes; all others are Spark's work.

May touch: the server; reads only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from oxcart.broker.bullmq.codec import attempts_made, count_of, options_of, text_of
from oxcart.broker.bullmq.keys import Keys
from oxcart.model import payload
from oxcart.model.errors import PayloadError
from oxcart.model.state import formal_state
from oxcart.model.target import base_of, split_lane
from oxcart.spark.access import Access, Choice, chosen
from oxcart.spark.wire import Wire

if TYPE_CHECKING:
    import pyarrow as pa

#: The columns with their types in Spark's words; texts named `data`, `options`, `result`, `tags` hold JSON.
JOB_COLUMNS = {
    "queue": "string",
    "lane": "string",
    "job_id": "string",
    "state": "string",
    "name": "string",
    "data": "string",
    "options": "string",
    "result": "string",
    "reason": "string",
    "stacktrace": "array<string>",
    "created_at": "timestamp",
    "started_at": "timestamp",
    "ended_at": "timestamp",
    "delay_ms": "bigint",
    "priority": "int",
    "attempts_made": "int",
    "attempts_started": "int",
    "stalls": "int",
    "worker": "string",
    "progress": "string",
    "category": "string",
    "code": "string",
    "formal_state": "string",
    "correlation_id": "string",
    "tags": "string",
}
JOB_SCHEMA = ", ".join(f"{name} {kind}" for name, kind in JOB_COLUMNS.items())

#: Where jobs are, in the direction in which they move, and how the state is called.
PLACES = {
    "waiting-children": "waiting-children",
    "delayed": "delayed",
    "wait": "waiting",
    "paused": "waiting",
    "prioritized": "prioritized",
    "active": "active",
    "failed": "failed",
    "completed": "completed",
}
_LISTS = ("wait", "paused", "active")
_ENDS = ("failed", "completed")
#: Jobs per task, and per round trip within it.
PER_TASK = 2000
PER_TRIP = 500
_LISTED = 10_000


@dataclass
class JobSlice(InputPartition):
    """Some jobs of a queue in a state."""

    queue: str
    state: str
    ids: tuple[str, ...]

    @property
    def value(self) -> Any:
        """What Spark's own partitions carry; unused."""
        return None


class JobReader(DataSourceReader):
    """Reads jobs.

    Args:
        access: Where the server is.
        choice: Which queues.
    """

    def __init__(self, access: Access, choice: Choice) -> None:
        self._access = access
        self._choice = choice
        self._queues: set[str] | None = None
        self._states: set[str] | None = None
        self._from_ms: int | None = None
        self._to_ms: int | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Takes what the server's indexes can answer; times are left to Spark too, because ms are rounded."""
        for condition in filters:
            column = condition.attribute if hasattr(condition, "attribute") else ()
            if column == ("queue",) and (values := _values(condition)) is not None:
                self._queues = values if self._queues is None else self._queues & values
            elif column == ("state",) and (values := _values(condition)) is not None:
                self._states = values if self._states is None else self._states & values
            else:
                if column == ("ended_at",):
                    self._bound(condition)
                yield condition

    def _bound(self, condition: Filter) -> None:
        if isinstance(condition, EqualTo | GreaterThan | GreaterThanOrEqual):
            self._from_ms = max(self._from_ms or 0, _millis(condition.value))
        if isinstance(condition, EqualTo | LessThan | LessThanOrEqual):
            upper = _millis(condition.value) + 1
            self._to_ms = upper if self._to_ms is None else min(self._to_ms, upper)

    def partitions(self) -> list[InputPartition]:
        """Lists ids; one task per so many of them."""
        server = self._access.server()
        queues = chosen(self._access, self._choice, server)
        slices: list[InputPartition] = []
        for queue in queues:
            if self._queues is not None and base_of(queue) not in self._queues:
                continue
            keys = Keys(queue, self._access.prefix, server.is_cluster)
            with Wire(server, keys.slot() if server.is_cluster else None) as wire:
                found = self._list(wire, keys)
            for state in dict.fromkeys(PLACES.values()):
                ids = [job_id for job_id, where in found.items() if where == state]
                slices += (
                    JobSlice(queue, state, tuple(ids[i : i + PER_TASK])) for i in range(0, len(ids), PER_TASK)
                )
        return slices

    def _list(self, wire: Wire, keys: Keys) -> dict[str, str]:
        found: dict[str, str] = {}
        timed = self._from_ms is not None or self._to_ms is not None
        for place, state in PLACES.items():
            if self._states is not None and state not in self._states:
                continue
            if timed and place not in _ENDS:
                continue  # what has not ended has no time of its end
            for raw in _ids(wire, keys.key(place), place, self._from_ms, self._to_ms):
                job_id = raw.decode("utf-8", "surrogateescape")
                if not job_id.startswith("0:"):  # a wake-up token of ancient peers
                    found[job_id] = state
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The jobs of a slice; those that are gone meanwhile are left out."""
        if not isinstance(partition, JobSlice):
            return  # where there is nothing to read Spark asks all the same, with a partition of its own
        server = self._access.server()
        keys = Keys(partition.queue, self._access.prefix, server.is_cluster)
        with Wire(server, keys.slot() if server.is_cluster else None) as wire:
            for start in range(0, len(partition.ids), PER_TRIP):
                ids = partition.ids[start : start + PER_TRIP]
                answers = wire.pipeline([("HGETALL", _key(keys, job_id)) for job_id in ids])
                rows = [
                    row_of(
                        *split_lane(partition.queue),
                        job_id,
                        partition.state,
                        dict(zip(flat[::2], flat[1::2], strict=True)),
                    )
                    for job_id, flat in zip(ids, answers, strict=True)
                    if flat
                ]
                if rows:
                    yield batch_of(rows)


def _ids(wire: Wire, key: str, place: str, from_ms: int | None, to_ms: int | None) -> Iterator[bytes]:
    first = 0
    while True:
        if place in _LISTS:
            page = wire.call("LRANGE", key, first, first + _LISTED - 1)
        elif from_ms is not None or to_ms is not None:
            low = "-inf" if from_ms is None else from_ms
            high = "+inf" if to_ms is None else to_ms
            page = wire.call("ZRANGEBYSCORE", key, low, high, "LIMIT", first, _LISTED)
        else:
            page = wire.call("ZRANGE", key, first, first + _LISTED - 1)
        yield from page
        if len(page) < _LISTED:
            return
        first += _LISTED


def _key(keys: Keys, job_id: str) -> bytes:
    return keys.job(job_id).encode("utf-8", "surrogateescape")


def row_of(
    queue: str, lane: str | None, job_id: str, state: str | None, fields: Mapping[bytes, bytes]
) -> tuple[Any, ...]:
    """A job as a row, from its hash."""
    get = fields.get
    try:
        stack = payload.read(get(b"stacktrace") or b"[]")
    except PayloadError:
        stack = []
    return (
        _clean(queue),
        None if lane is None else _clean(lane),
        _clean(job_id),
        state,
        _text(get(b"name")),
        _text(get(b"data")),
        _text(get(b"opts")),
        _text(get(b"returnvalue")),
        _text(get(b"failedReason")),
        [_clean(str(one)) for one in stack] if isinstance(stack, list) else [],
        _moment(get(b"timestamp")),
        _moment(get(b"processedOn")),
        _moment(get(b"finishedOn")),
        count_of(get(b"delay")),
        _small(count_of(get(b"priority"))),
        _small(attempts_made(fields)),
        _small(count_of(get(b"ats"))),
        _small(count_of(get(b"stc"))),
        _text(get(b"pb")),
        _text(get(b"progress")),
        _text(get(b"ox:category")),
        _text(get(b"ox:code")),
        None if state is None else _formal(state, fields),
        _text(get(b"ox:corr")),
        _text(get(b"ox:tags")),
    )


def _formal(state: str, fields: Mapping[bytes, bytes]) -> str:
    """The state in the words of the model."""
    get = fields.get
    return formal_state(
        state,
        attempts_made=attempts_made(fields),
        attempts=options_of(fields).attempts or 1,
        stalled=count_of(get(b"stc")),
        category=_text(get(b"ox:category")),
        lifetime_over=b"ox:dead" in fields,
        delay=None if get(b"delay") is None else count_of(get(b"delay")),
    )


def batch_of(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    """Rows as Spark takes them."""
    import pyarrow as pa

    kinds = {
        "string": pa.string(),
        "bigint": pa.int64(),
        "int": pa.int32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "array<string>": pa.list_(pa.field("element", pa.string())),
    }
    arrays = []
    for column, kind in zip(zip(*rows, strict=True), JOB_COLUMNS.values(), strict=True):
        if kind == "timestamp":
            made = pa.array([None if ms is None else ms * 1000 for ms in column], pa.int64())
            arrays.append(made.cast(kinds[kind]))
        else:
            arrays.append(pa.array(column, kinds[kind]))
    return pa.RecordBatch.from_arrays(arrays, names=list(JOB_COLUMNS))


def _clean(text: str) -> str:
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    except UnicodeEncodeError:  # half of a surrogate pair, from JSON
        return text.encode("utf-8", "replace").decode()


def _text(raw: bytes | None) -> str | None:
    text = text_of(raw)
    return None if text is None else _clean(text)


def _small(number: int) -> int:
    """The nearest number that a column of 32 bits holds."""
    return max(-(2**31), min(number, 2**31 - 1))


def _moment(raw: bytes | None) -> int | None:
    if raw is None:
        return None
    number = count_of(raw)
    return number if 0 <= number < 2**53 else None


def _values(condition: Filter) -> set[str] | None:
    if isinstance(condition, EqualTo | EqualNullSafe):
        return {condition.value}
    if isinstance(condition, In):
        return set(condition.value)
    return None


def _millis(value: Any) -> int:
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        return int(moment.timestamp() * 1000)
    if isinstance(value, date):
        return int(datetime(value.year, value.month, value.day, tzinfo=UTC).timestamp() * 1000)
    return int(value)
