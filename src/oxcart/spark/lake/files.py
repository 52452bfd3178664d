"""The files of a lake: what a snapshot names, and the errors of reading and writing them."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from oxcart.model.errors import OxcartError

#: Folder of files that no table has yet.
STAGING = "_staging"
#: Folder of the catalog and the metadata of Iceberg tables.
ICEBERG = "_iceberg"
#: The mark with the oldest day whose bronze is complete.
FIRST_DAY = "first_day"
#: How names of pending files begin.
_PENDING = "pending-"
#: Errors of a full file system.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NUMBER = re.compile(r"\(os error (\d+)\)")


class LakeError(OxcartError):
    """The lake cannot be read or written; the message names the remedy."""


class LakeConflict(LakeError):
    """Another writer changed the same part of the lake first; nothing of this change was published."""


class File(msgspec.Struct, frozen=True, omit_defaults=True):
    """One Parquet file of a table.

    Attributes:
        table: The table.
        day: The day of its rows, ``YYYY-MM-DD``.
        path: Its path, relative to the lake.
        rows: How many rows it has.
        size: Its size in bytes.
        low: The least queue of its rows; empty if unknown.
        high: The greatest queue of its rows.
        source: The path of a file that becomes this one when it is published: it is moved from staging, or
            linked if it is another file of a table. Empty for a published file.
    """

    table: str
    day: str
    path: str
    rows: int
    size: int
    low: str = ""
    high: str = ""
    source: str = ""

    @property
    def pending(self) -> bool:
        """Whether the next build of its day replaces it.

        Such a file is bronze that was not built from yet, or has rows of silver and gold that may change.
        """
        return self.path.rpartition("/")[2].startswith(_PENDING)

    @property
    def name(self) -> str:
        """Its path, whether pending or not: bronze keeps it when it is built from."""
        folder, _, name = self.path.rpartition("/")
        return f"{folder}/{name.removeprefix(_PENDING)}"

    def settled(self) -> File:
        """Returns the same file under a name that the next build leaves alone."""
        return msgspec.structs.replace(self, path=self.name, source=self.path) if self.pending else self


def file_name(unique: str, *, pending: bool) -> str:
    """Returns the name of a new file."""
    return f"{_PENDING if pending else ''}{unique}.parquet"


@contextlib.contextmanager
def explained(root: Path, what: str = "lake") -> Iterator[None]:
    """Raises a full or read-only file system as an error with the remedy."""
    try:
        yield
    except (FileExistsError, OxcartError):
        raise
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        if number is None and (found := _NUMBER.search(str(error))):  # delta-rs has it in the message alone
            number = int(found[1])
        if number in _FULL:
            raise LakeError(
                f"the {what} in {root} cannot grow: {os.strerror(number or 0)}; make room ('oxcart pipeline "
                "expire' deletes what old versions keep) and run it again: nothing is lost"
            ) from error
        if isinstance(error, PermissionError) or number in (errno.EACCES, errno.EROFS):
            raise LakeError(
                f"no right to write to the {what} in {root}: {os.strerror(number or errno.EACCES)}"
            ) from error
        raise


def delete_folder(folder: Path) -> None:
    """Deletes a folder with all that it has; a missing one is no error.

    Raises:
        LakeError: Something of it is left, for example because another user owns it.
    """
    shutil.rmtree(folder, ignore_errors=True)  # one file that stays keeps no other
    if not os.path.lexists(folder):
        return
    try:
        shutil.rmtree(folder)  # again, for the reason
    except OSError as error:
        if os.path.lexists(folder):
            raise LakeError(
                f"{folder} could not be deleted: {error.strerror or error}; it may hold deleted rows. "
                "Delete it as a user who may, then run it again"
            ) from error


def sync(path: Path) -> None:
    """Flushes a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
