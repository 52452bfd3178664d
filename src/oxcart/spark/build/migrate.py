"""Converts a lake of an earlier release, whose manifest named the files of all tables, to Delta tables.

Earlier releases had a file per day and queue, instants in ms, and the stream's name in ``queue`` of bronze.
All files are written anew and published as one version. Until then the old lake is not touched; after it the
old files are deleted. A migration that was killed is run again: it begins anew, or deletes what is left.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from oxcart.model.target import split_lane
from oxcart.spark.build.notes import Basis, Built, write_notes
from oxcart.spark.lake.bronze import BRONZE
from oxcart.spark.lake.columns import OPEN, STORED, public, public_name
from oxcart.spark.lake.delta import LOG, arrow_type
from oxcart.spark.lake.files import File, LakeError, delete_folder, explained
from oxcart.spark.lake.upkeep import TARGET
from oxcart.spark.lake.versions import OLD_LAYOUT, SNAPSHOTS, Change, Lake

if TYPE_CHECKING:
    import pyarrow as pa

#: Marks of the old layout that became the table ``builds``.
_BUILT = "built:"
#: Rows that are converted at once.
_ROWS = 50_000

Progress = Callable[[str, int, int], None]


class _OldFile(msgspec.Struct, frozen=True):
    table: str
    day: str
    queue: str
    path: str
    rows: int
    size: int
    pending: bool = False


class _Manifest(msgspec.Struct):
    number: int
    marks: dict[str, Any] = {}
    add: list[_OldFile] = []
    remove: list[str] = []
    files: list[_OldFile] | None = None


class _OldBuilt(msgspec.Struct):
    basis: Basis
    through: int
    handed: str
    kin: bool = False
    tallied: bool = False


class Migrated(msgspec.Struct, frozen=True):
    """The result of a migration.

    Attributes:
        rows: How many rows were converted.
        before: How many files the lake had.
        after: How many files it has now.
    """

    rows: int
    before: int
    after: int


def migrate(lake: Lake, progress: Progress | None = None) -> Migrated:
    """Converts a lake of an earlier release; one that is converted already is left as it is.

    Stop pipelines and tailers of the lake before.

    Raises:
        LakeError: A manifest or a file cannot be read, or an old folder could not be deleted.
    """
    progress = progress or (lambda what, done, all_: None)
    old = lake.root / OLD_LAYOUT
    if not old.is_dir():
        return Migrated(0, 0, len(lake.head().files))
    files, marks = _newest(lake)
    rows = 0
    if not (lake.root / SNAPSHOTS).is_dir():
        made: list[File] = []
        parts: dict[tuple[str, str, bool], list[_OldFile]] = {}
        for file in files:
            parts.setdefault((file.table, file.day, file.pending), []).append(file)
        for at, ((table, day, pending), some) in enumerate(sorted(parts.items())):
            progress("migrate", at, len(parts))
            for chunk in _chunks(sorted(some, key=lambda file: (file.queue, file.path))):
                made.append(_converted(lake, table, day, chunk, pending=pending))
        rows = sum(file.rows for file in made)
        made += _notes(lake, marks)
        with explained(lake.root):
            for log in lake.root.glob(f"*/{LOG}"):  # they were made of the manifest
                shutil.rmtree(log)
        kept = {name: value for name, value in marks.items() if not name.startswith(_BUILT)}
        lake.publish(Change("migrate", add=made, marks=kept), lake.at(0))
        progress("migrate", len(parts), len(parts))
    _delete(lake, files)
    return Migrated(rows, len(files), len(lake.head().files))


def _newest(lake: Lake) -> tuple[list[_OldFile], dict[str, Any]]:
    """The files and marks of the newest manifest."""
    folder = lake.root / OLD_LAYOUT
    numbers = sorted(int(name[:-5]) for name in os.listdir(folder) if name[:-5].isdecimal())
    steps: list[_Manifest] = []
    for number in reversed(numbers):
        path = folder / f"{number:020d}.json"
        try:
            steps.append(msgspec.json.decode(path.read_bytes(), type=_Manifest))
        except (OSError, msgspec.MsgspecError) as error:
            raise LakeError(f"{path} cannot be read ({error}): restore it from a backup") from error
        if steps[-1].files is not None:
            break
    files: dict[str, _OldFile] = {}
    marks: dict[str, Any] = {}
    for step in reversed(steps):
        if step.files is not None:
            files, marks = {file.path: file for file in step.files}, {}
        else:
            for path_ in step.remove:
                files.pop(path_, None)
            files |= {file.path: file for file in step.add}
        marks |= step.marks
    return list(files.values()), {name: value for name, value in marks.items() if value is not None}


def _converted(lake: Lake, table: str, day: str, files: Iterable[_OldFile], *, pending: bool) -> File:
    """Writes old files of a table and day into a new one."""
    from pyarrow import parquet

    stage = lake.staging()
    writer = None
    try:
        with explained(lake.root):
            for file in files:
                for batch in _batches(lake, file):
                    rows = _public(table, file.queue, batch)
                    if writer is None:
                        writer = parquet.ParquetWriter(
                            stage / "made.parquet", rows.schema, compression="zstd"
                        )
                    writer.write_batch(rows.cast(writer.schema))
            if writer is None:
                raise LakeError(f"the files of {table} {day} have no rows")
            writer.close()
        return lake.take(stage / "made.parquet", table, day, pending=pending)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _batches(lake: Lake, file: _OldFile) -> Iterator[pa.RecordBatch]:
    from pyarrow import ArrowException, parquet

    path = lake.root / file.path
    try:
        with parquet.ParquetFile(path) as source:
            yield from source.iter_batches(_ROWS)
    except (OSError, ArrowException) as error:
        raise LakeError(f"{path} cannot be read ({error}): restore it from a backup") from error


def _public(table: str, stream: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of an old file as files have them now."""
    import pyarrow as pa

    if table not in STORED:
        return batch.replace_schema_metadata(None)
    known = {public_name(name): name for name in batch.schema.names}
    count = batch.num_rows
    columns: dict[str, pa.Array] = {}
    for name, kind in public(table).items():
        wanted = arrow_type(kind)
        if name not in known:
            columns[name] = pa.nulls(count, wanted)
        elif kind == "timestamp":
            columns[name] = batch[known[name]].cast(pa.timestamp("ms", "UTC")).cast(wanted)
        else:
            columns[name] = batch[known[name]].cast(wanted)
    if table in (BRONZE, OPEN):
        for name, value in zip(("queue", "lane"), split_lane(stream), strict=True):
            columns[name] = pa.repeat(pa.scalar(value, pa.string()), count)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _notes(lake: Lake, marks: dict[str, Any]) -> list[File]:
    by_day: dict[str, dict[str, Built]] = {}
    for name, value in marks.items():
        if name.startswith(_BUILT):
            for day, old in msgspec.convert(value, dict[str, _OldBuilt]).items():
                # Without tallies the next span of a queue's last day cannot go on.
                stale = old.basis.last and not old.tallied
                made = Built(old.basis, old.through, old.handed, old.kin, stale)
                by_day.setdefault(day, {})[name.removeprefix(_BUILT)] = made
    return [file for day, known in sorted(by_day.items()) for file in write_notes(lake, day, known)]


def _delete(lake: Lake, files: Iterable[_OldFile]) -> None:
    """Deletes old files, then the manifests."""
    for file in files:
        (lake.root / file.path).unlink(missing_ok=True)
    for folder in lake.root.glob("*/day=*/queue=*"):
        delete_folder(folder)  # of older versions, and of killed writers
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(lake.root / OLD_LAYOUT)


def _chunks(files: Iterable[_OldFile]) -> Iterator[list[_OldFile]]:
    some: list[_OldFile] = []
    for file in files:
        some.append(file)
        if sum(one.size for one in some) >= TARGET:
            yield some
            some = []
    if some:
        yield some
