"""Bronze: a task that reads entries writes them straight from Arrow to Parquet.

Otherwise rows would travel from the task's Python to the JVM and be converted twice, which is most of the
work. So a task of the pipeline's stream writes its rows itself, and returns the files to Spark as rows.
Readers see files only after the driver committed them: no table has the files of a task that failed or ran
twice. A file has the rows of all queues of a task.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from oxcart.model.target import split_lane
from oxcart.spark.lake.columns import public, public_name
from oxcart.spark.lake.delta import arrow_type
from oxcart.spark.lake.files import File, explained
from oxcart.spark.read.entries import day_of

if TYPE_CHECKING:
    import pyarrow as pa

    from oxcart.spark.lake.versions import Lake

#: The table.
BRONZE = "events"
#: The files as rows, with Spark's types.
FILES = "file string, queues string"
#: Rows of a row group; so many are in memory at once, per day.
GROUP = 50_000
#: Columns of few values. For the others Parquet would start a dictionary and give it up.
_REPEATED = [
    "day",
    "queue",
    "lane",
    "stream",
    "kind",
    "life",
    "event",
    "name",
    "prev",
    "attempts_made",
    "cause",
]
_DAY_MS = 86_400_000


class Written(msgspec.Struct, frozen=True):
    """A file that a task wrote.

    Attributes:
        file: The file, in staging.
        queues: How many rows of each stream it has.
    """

    file: File
    queues: Mapping[str, int]


def write_rows(lake: Lake, batches: Iterable[pa.RecordBatch]) -> list[Written]:
    """Writes rows of streams into new files, one for each day.

    Args:
        lake: The lake.
        batches: Rows as transforms have them, each batch of one stream.

    Raises:
        LakeError: The file system is full.
    """
    stage = lake.staging()
    writers: dict[int, _Writer] = {}
    try:
        with explained(lake.root):
            for batch in batches:
                for day, rows in _by_day(batch):
                    if day not in writers:
                        writers[day] = _Writer(stage / f"{day}.parquet")
                    writers[day].write(rows)
            for writer in writers.values():
                writer.close()
        return [
            Written(lake.take(writer.path, BRONZE, day_of(day * _DAY_MS), pending=True), writer.queues)
            for day, writer in sorted(writers.items())
        ]
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def file_rows(files: Iterable[Written]) -> Iterator[pa.RecordBatch]:
    """Yields the files as rows for Spark."""
    import pyarrow as pa

    rows = [
        {
            "file": msgspec.json.encode(one.file).decode(),
            "queues": msgspec.json.encode(one.queues).decode(),
        }
        for one in files
    ]
    if rows:
        yield pa.RecordBatch.from_pylist(rows)


def files_of(rows: Iterable[Any]) -> list[Written]:
    """Returns the files that tasks wrote, from their rows."""
    made = (
        Written(
            msgspec.json.decode(row.file, type=File), msgspec.json.decode(row.queues, type=dict[str, int])
        )
        for row in rows
    )
    return sorted(made, key=lambda one: one.file.path)


def stored_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Returns rows of one stream as files have them: queue and lane apart, and instants as timestamps."""
    import pyarrow as pa

    stream = rows["queue"][0].as_py()
    queue, lane = split_lane(stream)
    kinds = public(BRONZE)
    given = {"queue": queue, "lane": lane}
    arrays = []
    for name, kind in kinds.items():
        if name in given:
            arrays.append(pa.repeat(pa.scalar(given[name], pa.string()), rows.num_rows))
        elif kind == "timestamp":
            source = next(known for known in rows.schema.names if public_name(known) == name)
            arrays.append(rows[source].cast(pa.timestamp("ms", "UTC")).cast(arrow_type(kind)))
        else:
            arrays.append(rows[name])
    return pa.RecordBatch.from_arrays(arrays, names=list(kinds))


class _Writer:
    """A file, written in groups of rows."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        self.path = path
        schema = pa.schema([(name, arrow_type(kind)) for name, kind in public(BRONZE).items()])
        self._writer = parquet.ParquetWriter(path, schema, compression="zstd", use_dictionary=_REPEATED)
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0
        self.queues: Counter[str] = Counter()

    def write(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(stored_rows(rows))
        self._rows += rows.num_rows
        self.queues[rows["queue"][0].as_py()] += rows.num_rows
        if self._rows >= GROUP:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=2 * GROUP)
            self._waiting, self._rows = [], 0


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Splits rows by day; most batches have one."""
    import pyarrow as pa
    from pyarrow import compute

    if not batch.num_rows:
        return
    days = batch["day"].cast(pa.int32())
    ends = compute.min_max(days)
    if ends["min"] == ends["max"]:
        yield ends["min"].as_py(), batch
        return
    for day in compute.unique(days).to_pylist():
        yield day, batch.filter(compute.equal(days, day))
