"""The jobs of queues as a table: the records that are on the server now, for ``spark.read.format("oxcart")``.

Planning lists ids, and tasks read their records. The server's indexes answer filters on queue, state and the
time of the end; Spark applies all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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

from oxcart.model.target import base_of
from oxcart.spark.options import QueueSelection, ServerAddress
from oxcart.spark.read.connection import Connection

if TYPE_CHECKING:
    import pyarrow as pa

    from oxcart.broker.export import StoredJob

#: The columns with Spark's types; `data`, `options`, `result` and `tags` are JSON as text.
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

#: Jobs per task, and per round trip within it.
PER_TASK = 2000
PER_TRIP = 500


@dataclass
class JobSlice(InputPartition):
    """Ids that one task reads; queue and state are empty where only the records tell them."""

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
        address: Where the server is.
        selection: Which queues.
    """

    def __init__(self, address: ServerAddress, selection: QueueSelection) -> None:
        self._address = address
        self._selection = selection
        self._queues: set[str] | None = None
        self._states: set[str] | None = None
        self._from_ms: int | None = None
        self._to_ms: int | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Takes filters that the server's indexes answer; Spark applies times again: ms are rounded."""
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
        with Connection(self._address) as connection:
            queues = [
                queue
                for queue in connection.queues(self._selection)
                if self._queues is None or base_of(queue) in self._queues
            ]
            listed = connection.run(
                connection.export.job_ids(queues, self._states, self._from_ms, self._to_ms)
            )
        return [
            JobSlice(found.queue, found.state, tuple(found.ids[first : first + PER_TASK]))
            for found in listed
            for first in range(0, len(found.ids), PER_TASK)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the jobs of a slice; jobs that are gone meanwhile are left out."""
        if not isinstance(partition, JobSlice):
            return  # without slices Spark passes an empty partition of its own
        queue, state, ids = partition.queue, partition.state, partition.ids
        with Connection(self._address) as connection:
            for first in range(0, len(ids), PER_TRIP):
                trip = ids[first : first + PER_TRIP]
                jobs = connection.run(connection.export.jobs(queue, state, trip))
                rows = [row_of(job) for job in jobs if queue or self._wants(job)]
                if rows:
                    yield batch_of(rows)

    def _wants(self, job: StoredJob) -> bool:
        """Whether a job that was listed without queue and state passes the selection and the filters."""
        return (
            (self._queues is None or job.queue in self._queues)
            and (self._states is None or job.state in self._states)
            and job.queue in self._selection.pick([job.queue])
        )


def row_of(job: StoredJob) -> tuple[Any, ...]:
    """Returns a job as a row: texts that UTF-8 holds, numbers that their columns hold."""
    return (
        _clean(job.queue),
        _clean(job.lane),
        _clean(job.id),
        job.state,
        _clean(job.name),
        _clean(job.data),
        _clean(job.options),
        _clean(job.result),
        _clean(job.reason),
        [_clean(frame) for frame in job.stacktrace],
        job.created_ms,
        job.started_ms,
        job.ended_ms,
        job.delay_ms,
        _small(job.priority),
        _small(job.attempts_made),
        _small(job.attempts_started),
        None if job.stalls is None else _small(job.stalls),
        _clean(job.worker),
        _clean(job.progress),
        _clean(job.category),
        _clean(job.code),
        job.formal_state,
        _clean(job.correlation_id),
        _clean(job.tags),
    )


def batch_of(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    """Returns rows as an Arrow batch."""
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


def _clean(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    except UnicodeEncodeError:  # half of a surrogate pair, from JSON
        return text.encode("utf-8", "replace").decode()


def _small(number: int) -> int:
    """The nearest number that a column of 32 bits holds."""
    return max(-(2**31), min(number, 2**31 - 1))


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
