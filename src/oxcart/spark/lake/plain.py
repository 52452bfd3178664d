"""One version of the tables for programs that know Parquet alone: folders of exactly its files.

``_plain/current`` is a link to a folder of hard links, one folder per table. No row is copied. A new version
gets a folder of its own, and the link is replaced by one rename. So a reader that resolves the link once, and
then lists the folder, sees each row once. Older folders stay for a day, for readers at work.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from oxcart.spark.lake.columns import STORED
from oxcart.spark.lake.files import LakeError, delete_folder, explained

if TYPE_CHECKING:
    from oxcart.spark.lake.versions import File, Lake

PLAIN = "_plain"
#: The link to the folder of the newest shown version.
CURRENT = "current"
_DAY_MS = 86_400_000
#: Errors of file systems without hard links.
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


def show_plain(lake: Lake, *, keep_ms: int = _DAY_MS) -> Path:
    """Shows the newest version; returns its folder, which never changes.

    Args:
        lake: The lake.
        keep_ms: Older folders stay for so many ms after they were replaced.

    Raises:
        LakeError: The file system has no hard links, or is full; or an older folder could not be deleted.
    """
    root = lake.root / PLAIN
    with lake.locked(), explained(lake.root):  # else an erasure may delete the files meanwhile
        version = lake.head()
        shown = _shown(root)
        if shown is None or shown.name.split(".")[1] != f"v{version.number}":
            folder = root / f".v{version.number}.{uuid.uuid4().hex[:8]}"
            try:
                for table in STORED:
                    (folder / table).mkdir(parents=True)
                    for file in version.of(table):
                        _link(lake.root / file.path, folder / table / _name(file))
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            if shown is not None:
                os.utime(shown)  # it is replaced now
            _switch(root, folder)
            shown = folder
        _drop_old(root, shown, lake.clock() - keep_ms if keep_ms else None)
    return shown


def renew_plain(lake: Lake, *, keep_ms: int = _DAY_MS) -> None:
    """Shows the newest version, if any version is shown: else its files would stay for ever."""
    if _shown(lake.root / PLAIN) is not None:
        show_plain(lake, keep_ms=keep_ms)


def forget_plain(lake: Lake) -> int:
    """Deletes all folders and the link; returns how many files there were.

    Raises:
        LakeError: A folder could not be deleted.
    """
    root = lake.root / PLAIN
    gone = sum(1 for _ in root.glob(".v*/*/*.parquet"))
    delete_folder(root)
    return gone


def _shown(root: Path) -> Path | None:
    """The folder of the newest shown version."""
    try:
        found = root / os.readlink(root / CURRENT)
    except OSError:
        return None
    return found if found.is_dir() else None


def _name(file: File) -> str:
    """A name that says the day: all files of a table are in one folder."""
    return f"{file.day}-{file.name.rpartition('/')[2]}"


def _link(file: Path, name: Path) -> None:
    try:
        os.link(file, name)
    except FileNotFoundError as error:
        raise LakeError(f"{file} is missing: restore it from a backup, or rebuild its day") from error
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise LakeError(
                f"plain folders need hard links, which the file system of {file.parent} lacks: export a "
                "table by 'oxcart pipeline query … --parquet FILE'"
            ) from error
        raise


def _switch(root: Path, folder: Path) -> None:
    draft = root / ".next"
    draft.unlink(missing_ok=True)  # of a killed call
    os.symlink(folder.name, draft)
    os.replace(draft, root / CURRENT)


def _drop_old(root: Path, shown: Path, before_ms: int | None) -> None:
    for folder in root.glob(".v*"):
        with contextlib.suppress(FileNotFoundError):
            if folder != shown and (before_ms is None or folder.stat().st_mtime * 1000 <= before_ms):
                delete_folder(folder)
