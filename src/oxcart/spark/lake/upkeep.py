"""Keeps a lake small: joins small files, and drops old versions."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from oxcart.spark.lake.versions import (
    STAGING,
    VERSIONS,
    Change,
    File,
    Lake,
    Part,
    Version,
    explained,
    manifest_name,
    sync,
)

if TYPE_CHECKING:
    import pyarrow as pa


def compact(lake: Lake, table: str | None = None, *, least: int = 2, below: int | None = None) -> int:
    """Joins the files of each part that has several; the rows stay the same and in the same order.

    Files that the next build replaces are left to it.

    Args:
        lake: The lake.
        table: Only this table.
        least: Parts with fewer files are left alone.
        below: Only files of fewer bytes; by default all.

    Returns:
        How many files fewer there are.
    """
    base = lake.head()
    parts: dict[Part, list[File]] = {}
    for file in base.files.values():
        wanted = not file.pending and (below is None or file.size < below)
        if wanted and (table is None or file.table == table):
            parts.setdefault(file.part, []).append(file)
    fewer = 0
    for part, files in sorted(parts.items()):
        if len(files) < max(least, 2):
            continue
        made = _joined(lake, part, files)
        # Files are removed, not the part: rows that are added meanwhile stay.
        gone = frozenset(file.path for file in files)
        lake.publish(Change(f"compact {part[0]}", add=[made], remove=gone), base)
        fewer += len(files) - 1
    return fewer


def _joined(lake: Lake, part: Part, files: list[File]) -> File:
    from pyarrow import parquet

    made = lake.staging() / "compacted.parquet"
    with explained(lake.root):
        # An earlier release may have written fewer columns.
        schemas = (parquet.read_schema(lake.root / file.path) for file in files)
        schema = max(schemas, key=lambda one: len(one.names))
        with parquet.ParquetWriter(made, schema, compression="zstd") as writer:
            for file in files:
                for batch in parquet.ParquetFile(lake.root / file.path).iter_batches():
                    writer.write_batch(_fitted(batch, schema))
    taken = lake.take(made, *part)
    made.parent.rmdir()
    return taken


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows with the columns of a schema; columns that an earlier release did not write are null."""
    import pyarrow as pa

    if batch.schema == schema:
        return batch
    known = set(batch.schema.names)
    columns = [
        batch[field.name].cast(field.type) if field.name in known else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def expire(
    lake: Lake,
    *,
    keep: int = 100,
    older_than_ms: int = 86_400_000,
    orphans_ms: int = 86_400_000,
) -> int:
    """Drops old versions and deletes files that no kept version names.

    Args:
        lake: The lake.
        keep: How many versions stay at least.
        older_than_ms: Younger versions stay too: a reader may use them.
        orphans_ms: Files that were never published go when they are this old.

    Returns:
        How many files were deleted.
    """
    numbers = lake.numbers()
    if not numbers:
        return 0
    now = lake.clock()
    # Versions are published one after the other: all after the first young one are young.
    first = next(
        number
        for number in numbers
        if number > numbers[-1] - keep or now - lake.manifest(number).at_ms < older_than_ms
    )
    named = _drop_versions(lake, first)
    return sum(1 for path in _unnamed(lake, named, now - orphans_ms) if _gone(path))


def forget(lake: Lake, first: int) -> int:
    """Drops all versions before one, however young, and deletes the files that only they name.

    A reader of such a version fails. Files that a writer has not published yet stay.

    Returns:
        How many files were deleted.
    """
    numbers = [number for number in lake.numbers() if number < first]
    if not numbers:
        return 0
    old = set(lake.at(numbers[0]).files)
    for number in numbers:
        old.update(file.path for file in lake.manifest(number).add)
    named = _drop_versions(lake, first)
    return sum(1 for path in old - named if _gone(lake.root / path))


def _drop_versions(lake: Lake, first: int) -> set[str]:
    """Drops the versions before one; returns the files that the others name."""
    numbers, oldest = lake.numbers(), lake.at(first)
    named = set(oldest.files)
    for number in numbers:
        if number > first:
            named.update(file.path for file in lake.manifest(number).add)
    # The oldest kept version must not depend on one that goes.
    if lake.manifest(first).files is None:
        _rewrite_whole(lake, oldest)
    for number in numbers:
        if number < first:
            (lake.root / VERSIONS / manifest_name(number)).unlink(missing_ok=True)
    return named


def _rewrite_whole(lake: Lake, version: Version) -> None:
    manifest = lake.manifest(version.number)
    manifest.files, manifest.marks = list(version.files.values()), dict(version.marks)
    made = lake.root / VERSIONS / f".{uuid.uuid4().hex}"
    made.write_bytes(msgspec.json.encode(manifest))
    sync(made)
    os.replace(made, lake.root / VERSIONS / manifest_name(version.number))


def _unnamed(lake: Lake, named: set[str], before_ms: int) -> Iterator[Path]:
    for folder, inner, names in os.walk(lake.root):
        place = Path(folder)
        if STAGING not in place.relative_to(lake.root).parts:
            # Tables and their staging folders alone: not checkpoints, spools and Delta logs.
            inner[:] = [name for name in inner if name == STAGING or not name.startswith("_")]
        if place == lake.root:
            continue
        for name in names:
            path = place / name
            with contextlib.suppress(FileNotFoundError):
                young = path.stat().st_mtime * 1000 > before_ms
                if not young and str(path.relative_to(lake.root)) not in named:
                    yield path


def _gone(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
        # Empty folders go with their last file.
        with contextlib.suppress(OSError):
            path.parent.rmdir()
        return True
    return False
