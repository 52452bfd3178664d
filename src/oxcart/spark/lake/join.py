"""Rewrites files of a table as one: rows of several files, or only some of their rows.

Row groups get their full size, so that a reader skips whole groups, and compresses better than many small
ones. Rows are sorted by queue within a group.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from oxcart.spark.lake.files import File, explained

if TYPE_CHECKING:
    import pyarrow as pa

    from oxcart.spark.lake.versions import Lake

#: Rows and bytes of a row group in a joined file. A reader skips whole groups by their times.
GROUP_ROWS = 100_000
GROUP_BYTES = 64 << 20

Keep = Callable[["pa.RecordBatch"], "pa.RecordBatch"]


def joined(
    lake: Lake, files: Collection[File], *, pending: bool = False, keep: Keep | None = None
) -> File | None:
    """Writes the rows of files of one table and day into a new file, which is not yet published.

    Args:
        lake: The lake.
        files: The files.
        pending: Whether the next build replaces the new file.
        keep: Returns the rows of a batch that stay; all of them unless given.

    Returns:
        The file; None if no row stays.
    """
    from pyarrow import parquet

    first = next(iter(files))
    stage = lake.staging()
    try:
        with explained(lake.root):
            # An earlier release may have written fewer columns.
            schemas = (parquet.read_schema(lake.place(file)) for file in files)
            schema = max(schemas, key=lambda one: len(one.names)).remove_metadata()
            made, rows = stage / "joined.parquet", 0
            with parquet.ParquetWriter(made, schema, compression="zstd") as writer:
                for group in _groups(lake, files, schema, keep):
                    rows += group.num_rows
                    writer.write_table(group, row_group_size=group.num_rows)
        return lake.take(made, first.table, first.day, pending=pending) if rows else None
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def without_streams(streams: Collection[str]) -> Keep:
    """Returns a filter that leaves out the rows of some streams."""
    import pyarrow as pa
    from pyarrow import compute

    gone = pa.array(sorted(streams), pa.string())

    def keep(batch: pa.RecordBatch) -> pa.RecordBatch:
        names = batch["queue"].cast(pa.string())
        if "lane" in batch.schema.names:
            lane = batch["lane"].cast(pa.string())
            whole = compute.binary_join_element_wise(names, lane, "@")
            names = compute.if_else(compute.is_null(lane), names, whole)
        return batch.filter(compute.invert(compute.is_in(names, value_set=gone)))

    return keep


def _groups(lake: Lake, files: Iterable[File], schema: pa.Schema, keep: Keep | None) -> Iterator[pa.Table]:
    """The rows of files in row groups of full size."""
    import pyarrow as pa
    from pyarrow import parquet

    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for file in files:
        with parquet.ParquetFile(lake.place(file)) as source:
            for batch in source.iter_batches():
                kept = batch if keep is None else keep(batch)
                if not kept.num_rows:
                    continue
                waiting.append(_fitted(kept, schema))
                rows, size = rows + kept.num_rows, size + kept.nbytes
                if rows >= GROUP_ROWS or size >= GROUP_BYTES:
                    yield _sorted(pa.Table.from_batches(waiting))
                    waiting, rows, size = [], 0, 0
    if waiting:
        yield _sorted(pa.Table.from_batches(waiting))


def _sorted(rows: pa.Table) -> pa.Table:
    """Rows by queue, and in their order within a queue."""
    from pyarrow import compute

    if "queue" not in rows.schema.names:
        return rows
    ends = compute.min_max(rows["queue"])
    if ends["min"] == ends["max"]:
        return rows
    numbered = rows.append_column("_place", [list(range(rows.num_rows))])
    order = compute.sort_indices(numbered, sort_keys=[("queue", "ascending"), ("_place", "ascending")])
    return rows.take(order)


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows with the columns of a schema; columns that an earlier release did not write are null."""
    import pyarrow as pa

    if batch.schema.equals(schema):
        return batch
    known = set(batch.schema.names)
    columns = [
        batch[field.name].cast(field.type) if field.name in known else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
