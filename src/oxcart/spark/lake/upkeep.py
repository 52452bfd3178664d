"""Keeps a lake small: joins small files, drops old days, and deletes files that no table names.

Compaction is ours, not delta-rs': pending files must stay by themselves, because the next build replaces
them, and rows stay sorted by queue. delta-rs deletes files (vacuum), and writes checkpoints and cleans logs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from oxcart.spark.lake.files import ICEBERG, STAGING, File, LakeConflict, LakeError, delete_folder
from oxcart.spark.lake.join import joined
from oxcart.spark.lake.plain import PLAIN, forget_plain, renew_plain
from oxcart.spark.lake.versions import SNAPSHOTS, Change, Lake, Version, snapshot_name

log = logging.getLogger("oxcart.spark.pipeline")

#: Files of fewer bytes are joined by `tidy`, in a day that has so many of about the same size.
SMALL = 32 << 20
MOST_SMALL = 16
#: A day of a table that got no file for so many ms is joined however few files it has.
QUIET_MS = 3_600_000
#: Bytes of the files that become one; a larger file is left as it is.
TARGET = 256 << 20
#: Snapshots stay for so many ms: as long as Delta's logs keep the commits that they name.
SNAPSHOTS_MS = 3_600_000
DAY_MS = 86_400_000
HOUR_MS = 3_600_000


def compact(lake: Lake, table: str | None = None, *, least: int = 2, below: int | None = None) -> int:
    """Joins the files of each day of a table that has several; the rows stay the same.

    Files that the next build replaces are left to it, and files that another writer changes meanwhile to the
    next compaction.

    Args:
        lake: The lake.
        table: Only this table.
        least: Days with fewer files are left alone.
        below: Only files of fewer bytes; by default all up to `TARGET`.

    Returns:
        How many files fewer there are.
    """
    base = lake.head()
    fewer = 0
    for files in _days(base, TARGET if below is None else below, table):
        if len(files) >= max(least, 2):
            fewer += _join(lake, base, files)
    return fewer


def tidy(lake: Lake, *, stop: Callable[[], bool] = lambda: False, seconds: float = 10.0) -> int:
    """Joins small files beside a running pipeline, where a day has many or has become quiet.

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
    for files in _days(base, SMALL, None):
        if stop() or time.monotonic() > due:
            break
        chosen = _alike(files) or (files if len(files) > 1 and _quiet(lake, files) else [])
        if chosen:
            fewer += _join(lake, base, chosen)
    return fewer


def _days(base: Version, below: int, table: str | None) -> list[list[File]]:
    """The small files of each day of a table that `compact` may join."""
    found: dict[tuple[str, str], list[File]] = {}
    for name in base.tables if table is None else (table,):
        for file in base.of(name):
            if not file.pending and file.size < below:
                found.setdefault((name, file.day), []).append(file)
    return [files for _, files in sorted(found.items())]


def _alike(files: Iterable[File]) -> list[File]:
    """The smallest files, up to the end of the first run of `MOST_SMALL` of about the same size; else none.

    A run ends before a file that is larger than all smaller ones together. So a day keeps fewer than
    `MOST_SMALL` files of each run, and sizes triple from run to run: a row is rewritten once per run.
    """
    found: list[File] = []
    run = size = 0
    for file in sorted(files, key=lambda file: file.size):
        if file.size > 2 * size:
            if run >= MOST_SMALL:
                return found
            run = 0
        found.append(file)
        run += 1
        size += file.size
    return found if run >= MOST_SMALL else []


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
    """Joins files of a day, as many at a time as have the size of one; returns how many fewer."""
    fewer = 0
    for some in _chunks(sorted(files, key=lambda file: (_written(lake, file), file.path))):
        table = some[0].table
        try:
            made = joined(lake, some)
            gone = frozenset(file.path for file in some)
            lake.publish(Change(f"compact {table}", add=[] if made is None else [made], remove=gone), base)
            fewer += len(some) - 1
        except (LakeConflict, FileNotFoundError) as error:
            present = lake.head().by_path(table)
            missing = [file.path for file in some if file.path in present and not _there(lake, file)]
            if missing:
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


# -- deleting


def expire(lake: Lake, *, older_than_ms: int = DAY_MS) -> int:
    """Deletes files that no table has named for some time, snapshots, and what killed writers left.

    Args:
        lake: The lake.
        older_than_ms: Files that went later stay, for readers of an older version. 0 deletes all of them.

    Returns:
        How many files were deleted.

    Raises:
        LakeError: A folder could not be deleted.
    """
    _drop_snapshots(lake, min(older_than_ms, SNAPSHOTS_MS))
    gone = _vacuum(lake, -(-older_than_ms // HOUR_MS))
    # A writer at work may need its staged files for hours.
    gone += _sweep(lake.root / STAGING, lake.clock() - max(older_than_ms, DAY_MS))
    renew_plain(lake, keep_ms=older_than_ms)
    return gone


def forget(lake: Lake) -> int:
    """Deletes every file that the newest version does not name, however young, and all older versions.

    A reader of an older version fails. A writer at work finds its staged files gone, and writes them again.
    Iceberg tables and plain folders go, too: `oxcart.spark.lake.iceberg.show_iceberg` and
    `oxcart.spark.lake.plain.show_plain` make them anew.

    Returns:
        How many files were deleted.

    Raises:
        LakeError: A folder could not be deleted.
    """
    with lake.locked():
        _drop_snapshots(lake, 0)
        gone = _sweep(lake.root / STAGING, None)
        # Iceberg's metadata has the least and greatest values of every column.
        gone += _sweep(lake.root / ICEBERG, None)
        forget_plain(lake)
        gone += _vacuum(lake, 0)
        _drop_snapshots(lake, 0)
    return gone


def _vacuum(lake: Lake, hours: int) -> int:
    gone = 0
    for table, one in lake.logs().items():
        with lake.locked():  # a file that is about to be committed is in its place already
            gone += one.vacuum(hours)
            one.clean()
            for folder in (lake.root / table).glob("day=*"):
                with contextlib.suppress(OSError):  # it has files
                    folder.rmdir()
    lake.note_versions("expire")
    return gone


def disk_bytes(lake: Lake) -> int:
    """Returns the bytes of all files of the tables, those included that no table names any more."""
    found: dict[int, int] = {}  # by inode: bronze that was built from has two names for a day
    folders = [(lake.root / table, "day=*/*.parquet") for table in lake.head().tables]
    for folder, names in (*folders, (lake.root / PLAIN, ".v*/*/*.parquet")):
        for path in folder.glob(names):
            with contextlib.suppress(FileNotFoundError):
                facts = path.stat()
                found[facts.st_ino] = facts.st_size
    return sum(found.values())


def _drop_snapshots(lake: Lake, older_than_ms: int) -> None:
    now = lake.clock()
    for number in lake.numbers()[:-1]:
        if older_than_ms and now - lake.snapshot(number).at_ms < older_than_ms:
            return  # they are published one after the other
        (lake.root / SNAPSHOTS / snapshot_name(number)).unlink(missing_ok=True)


def _sweep(folder: Path, before_ms: int | None) -> int:
    """Deletes what is in a folder, if it is older; returns how many files."""
    gone = 0
    for path in folder.glob("*"):
        with contextlib.suppress(FileNotFoundError):
            if before_ms is not None and path.stat().st_mtime * 1000 > before_ms:
                continue
            if path.is_dir():
                gone += sum(len(names) for _, _, names in os.walk(path))
                delete_folder(path)
            else:
                path.unlink()
                gone += 1
    return gone
