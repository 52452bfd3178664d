"""Bronze: a task that reads entries writes them straight from Arrow to Parquet.

Otherwise rows would travel from the task's Python to the JVM and be converted twice, which is most of the
work. So a task of the pipeline's stream writes its rows itself, and returns the files to Spark as rows.
Readers see files only after the driver published them: no manifest names the files of a task that failed or
ran twice.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oxcart.spark.lake.versions import File, Lake, explained
from oxcart.spark.read.entries import day_of

if TYPE_CHECKING:
    import pyarrow as pa

#: The table.
BRONZE = "events"
#: The files as rows, with Spark's types.
FILES = "day string, queue string, path string, rows bigint, size bigint"
#: Rows of a row group; so many are in memory at once, per day.
GROUP = 50_000
#: Columns of few values. For the others Parquet would start a dictionary and give it up.
_REPEATED = ["day", "queue", "stream", "kind", "life", "event", "name", "prev", "attempts_made", "cause"]
_DAY_MS = 86_400_000


def write_rows(lake: Lake, queue: str, batches: Iterable[pa.RecordBatch]) -> list[File]:
    """Writes rows of a queue into new files, one for each day.

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
                        writers[day] = _Writer(stage / f"{day}.parquet", rows.schema)
                    writers[day].write(rows)
            for writer in writers.values():
                writer.close()
        return [
            lake.take(writer.path, BRONZE, day_of(day * _DAY_MS), queue, pending=True)
            for day, writer in sorted(writers.items())
        ]
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def file_rows(files: Iterable[File]) -> Iterator[pa.RecordBatch]:
    """Yields the files as rows for Spark."""
    import pyarrow as pa

    kinds = {"rows": pa.int64(), "size": pa.int64()}
    fields = [pa.field(name, kinds.get(name, pa.string())) for name in _names()]
    rows = [{name: getattr(file, name) for name in _names()} for file in files]
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=pa.schema(fields))


def files_of(rows: Iterable[Any]) -> list[File]:
    """Returns the files that tasks wrote, from their rows."""
    made = (File(BRONZE, row.day, row.queue, row.path, row.rows, row.size, True) for row in rows)
    return sorted(made, key=lambda file: file.path)


def _names() -> list[str]:
    return [field.split()[0] for field in FILES.split(", ")]


class _Writer:
    """A file, written in groups of rows."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        from pyarrow import parquet

        self.path = path
        self._writer = parquet.ParquetWriter(path, schema, compression="zstd", use_dictionary=_REPEATED)
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0

    def write(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._rows += rows.num_rows
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

    days = batch["day"].cast(pa.int32())
    ends = compute.min_max(days)
    if ends["min"] == ends["max"]:
        yield ends["min"].as_py(), batch
        return
    for day in compute.unique(days).to_pylist():
        yield day, batch.filter(compute.equal(days, day))
