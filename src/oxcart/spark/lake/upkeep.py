"""Keeps a lake small: joins small files, and drops old versions.

If a lake has Delta logs, each of these brings them along. A log that stays behind would name files that are
deleted later.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from oxcart.spark.lake.delta import Delta, has_logs
from oxcart.spark.lake.versions import (
    STAGING,
    VERSIONS,
    Change,
    File,
    Lake,
    LakeConflict,
    LakeError,
    Part,
    Version,
    explained,
    manifest_name,
    sync,
)

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("oxcart.spark.pipeline")

#: Files of fewer bytes are joined by `tidy`, in a part that has so many of about the same size.
SMALL = 32 << 20
MOST_SMALL = 16
#: A part that got no file for so many ms is joined however few files it has.
QUIET_MS = 3_600_000
#: Bytes of the files that become one; a larger file is left as it is.
TARGET = 256 << 20
#: Rows and bytes of a row group in a joined file. A reader skips whole groups by their times.
GROUP_ROWS = 100_000
GROUP_BYTES = 64 << 20


def compact(lake: Lake, table: str | None = None, *, least: int = 2, below: int | None = None) -> int:
    """Joins the files of each part that has several; the rows stay the same, the oldest file's first.

    Files that the next build replaces are left to it, and parts that another writer changes meanwhile to the
    next compaction.

    Args:
        lake: The lake.
        table: Only this table.
        least: Parts with fewer files are left alone.
        below: Only files of fewer bytes; by default all up to `TARGET`.

    Returns:
        How many files fewer there are.

    Raises:
        MissingExtra: The lake has Delta logs, and deltalake is not installed.
    """
    logs = Delta(lake) if has_logs(lake) else None
    base = lake.head()
    fewer = 0
    for files in _parts(base, TARGET if below is None else below, table):
        if len(files) >= max(least, 2):
            fewer += _join(lake, base, files)
    if fewer and logs is not None:
        logs.follow()
    return fewer


def tidy(lake: Lake, *, stop: Callable[[], bool] = lambda: False, seconds: float = 10.0) -> int:
    """Joins small files beside a running pipeline, where a part has many or has become quiet.

    Only files of about the same size are joined, so that a row is rewritten a few times in its life and not
    with every batch.

    Args:
        lake: The lake.
        stop: Ends the work when it returns True.
        seconds: The work ends after so many seconds; the next call continues.

    Returns:
        How many files fewer there are.
    """
    base = lake.head()
    due, fewer = time.monotonic() + seconds, 0
    for files in _parts(base, SMALL, None):
        if stop() or time.monotonic() > due:
            break
        chosen = _alike(files)
        if len(chosen) < MOST_SMALL:
            chosen = files if len(files) > 1 and _quiet(lake, files) else []
        if chosen:
            fewer += _join(lake, base, chosen)
    if fewer and has_logs(lake):
        Delta(lake).follow()
    return fewer


def _parts(base: Version, below: int, table: str | None) -> list[list[File]]:
    """The small files of each part that `compact` may join."""
    parts: dict[Part, list[File]] = {}
    for file in base.files.values():
        if not file.pending and file.size < below and (table is None or file.table == table):
            parts.setdefault(file.part, []).append(file)
    return [files for _, files in sorted(parts.items())]


def _alike(files: Iterable[File]) -> list[File]:
    """The smallest files, up to the first that is larger than all before it together."""
    found: list[File] = []
    size = 0
    for file in sorted(files, key=lambda file: file.size):
        if found and file.size > 2 * size:
            break
        found.append(file)
        size += file.size
    return found


def _quiet(lake: Lake, files: Iterable[File]) -> bool:
    newest = max((_written(lake, file) for file in files), default=0.0)
    return lake.clock() - newest * 1000 > QUIET_MS


def _written(lake: Lake, file: File) -> float:
    """When a file was written; a missing file counts as new."""
    try:
        return (lake.root / file.path).stat().st_mtime
    except FileNotFoundError:
        return float("inf")


def _join(lake: Lake, base: Version, files: list[File]) -> int:
    """Joins the files of a part, as many at a time as have the size of one; returns how many fewer."""
    fewer = 0
    for some in _chunks(sorted(files, key=lambda file: (_written(lake, file), file.path))):
        table, made = some[0].table, None
        try:
            made = _joined(lake, some)
            # Files are removed, not the part: rows that are added meanwhile stay.
            gone = frozenset(file.path for file in some)
            lake.publish(Change(f"compact {table}", add=[made], remove=gone), base)
            fewer += len(some) - 1
        except (LakeConflict, FileNotFoundError) as error:
            if made is not None:
                _gone(lake.root / made.path)
            present = lake.head().files
            if missing := [file.path for file in some if file.path in present and not _there(lake, file)]:
                raise LakeError(
                    f"{lake.root} lacks {missing[0]}, which its newest version names: restore it from a "
                    "backup, or rebuild its day"
                ) from error
            log.info("compaction of %s is left to the next one: %s", table, error)
    return fewer


def _there(lake: Lake, file: File) -> bool:
    return (lake.root / file.path).exists()


def _chunks(files: Iterable[File]) -> Iterator[list[File]]:
    """Files in runs of at least two and about `TARGET` bytes; one that is left over stays as it is."""
    some: list[File] = []
    for file in files:
        some.append(file)
        if len(some) > 1 and sum(one.size for one in some) >= TARGET:
            yield some
            some = []
    if len(some) > 1:
        yield some


def _joined(lake: Lake, files: list[File]) -> File:
    from pyarrow import parquet

    made = lake.staging() / "compacted.parquet"
    try:
        with explained(lake.root):
            # An earlier release may have written fewer columns.
            schemas = (parquet.read_schema(lake.root / file.path) for file in files)
            schema = max(schemas, key=lambda one: len(one.names))
            with parquet.ParquetWriter(made, schema, compression="zstd") as writer:
                for group in _groups(lake, files, schema):
                    writer.write_table(group, row_group_size=group.num_rows)
        return lake.take(made, *files[0].part)
    finally:
        made.unlink(missing_ok=True)
        made.parent.rmdir()


def _groups(lake: Lake, files: Iterable[File], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of files in row groups of full size."""
    import pyarrow as pa
    from pyarrow import parquet

    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for file in files:
        with parquet.ParquetFile(lake.root / file.path) as source:
            for batch in source.iter_batches():
                waiting.append(_fitted(batch, schema))
                rows, size = rows + batch.num_rows, size + batch.nbytes
                if rows >= GROUP_ROWS or size >= GROUP_BYTES:
                    yield pa.Table.from_batches(waiting)
                    waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)


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
    keep: int = 1,
    older_than_ms: int = 86_400_000,
    orphans_ms: int = 86_400_000,
) -> int:
    """Drops old versions and deletes files that no kept version names.

    Args:
        lake: The lake.
        keep: How many versions stay at least.
        older_than_ms: Younger versions stay too: a reader may use them.
        orphans_ms: Files that were never published go when they are this old: a writer may be about to
            publish a younger one.

    Returns:
        How many files were deleted.

    Raises:
        MissingExtra: The lake has Delta logs, and deltalake is not installed.
    """
    numbers = lake.numbers()
    if not numbers:
        return 0
    if has_logs(lake):
        Delta(lake).follow()  # before a file goes that the log still names
    now = lake.clock()
    # Versions are published one after the other: all after the first young one are young.
    first = next(
        number
        for number in numbers
        if number > numbers[-1] - max(keep, 1) or now - lake.manifest(number).at_ms < older_than_ms
    )
    deleted = forget(lake, first)
    named = _named(lake, first)
    return deleted + sum(1 for path in _unnamed(lake, named, now - orphans_ms) if _gone(path))


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
    named = _named(lake, first)
    # The oldest kept version must not depend on one that goes.
    if lake.manifest(first).files is None:
        _rewrite_whole(lake, lake.at(first))
    for number in lake.numbers():
        if number < first:
            (lake.root / VERSIONS / manifest_name(number)).unlink(missing_ok=True)
    return named


def _named(lake: Lake, first: int) -> set[str]:
    """The files that a version and all later ones name."""
    named = set(lake.at(first).files)
    for number in lake.numbers():
        if number > first:
            named.update(file.path for file in lake.manifest(number).add)
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
