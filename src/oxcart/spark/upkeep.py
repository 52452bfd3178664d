"""Keeping a lake small: few files instead of many, and no versions that nobody needs.

May touch: files below the lake's folder.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from oxcart.spark.lake import (
    STAGING,
    VERSIONS,
    Change,
    File,
    Lake,
    Part,
    Version,
    manifest_name,
    speaking,
    sync,
)

if TYPE_CHECKING:
    import pyarrow as pa


def compact(lake: Lake, table: str | None = None, *, least: int = 2, below: int | None = None) -> int:
    """Makes one file of each part that has several; the rows stay the same and in the same order.

    Files that the next build takes away are left to it.

    Args:
        lake: The lake.
        table: Only this table.
        least: Parts with fewer files are left alone.
        below: Only files of fewer bytes; all unless given.

    Returns:
        How many files are fewer.
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
        # Single files, not the part: rows that are added meanwhile stay.
        gone = frozenset(file.path for file in files)
        lake.publish(Change(f"compact {part[0]}", add=[made], remove=gone), base)
        fewer += len(files) - 1
    return fewer


def _joined(lake: Lake, part: Part, files: list[File]) -> File:
    from pyarrow import parquet

    made = lake.staging() / "compacted.parquet"
    with speaking(lake.root):
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
    """Rows with the columns of a schema: what an earlier release did not write yet is null."""
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
    """Forgets old versions and deletes files that no kept version names.

    Args:
        lake: The lake.
        keep: How many versions stay at least.
        older_than_ms: Younger versions stay too: somebody may be reading them.
        orphans_ms: Files that were never published go when they are this old.

    Returns:
        How many files were deleted.
    """
    numbers = lake.numbers()
    if not numbers:
        return 0
    now = lake.clock()
    # Versions are published one after the other: behind the first that is young enough all are.
    first = next(
        number
        for number in numbers
        if number > numbers[-1] - keep or now - lake.manifest(number).at_ms < older_than_ms
    )
    named = _drop_versions(lake, first)
    return sum(1 for path in _unnamed(lake, named, now - orphans_ms) if _gone(path))


def forget(lake: Lake, first: int) -> int:
    """Forgets all versions before one, however young, and deletes the files that only they name.

    Whoever reads one of them meanwhile fails. Files that a writer has not published yet stay.

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
    """Forgets the versions before one; returns the files that the others name."""
    numbers, oldest = lake.numbers(), lake.at(first)
    named = set(oldest.files)
    for number in numbers:
        if number > first:
            named.update(file.path for file in lake.manifest(number).add)
    # A kept version must not lean on one that goes.
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
            # Only tables, and what was meant for them: checkpoints, spools and Delta logs are not ours to
            # judge.
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
