"""Output of an attempt that readers see whole or not at all.

An attempt writes into a hidden folder beside the target. When it succeeds, that folder becomes the target in
one step of the file system. The published folder names the job and the fence of its attempt in
``_published.json``, so that an older attempt of the same job, which lost its lease, cannot replace it.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

from oxcart.model.errors import LeaseLost, ValidationError

#: The file in a published folder that names its attempt. Spark reads no file whose name begins so.
MARK = "_published.json"

#: How the name of old content ends while it is replaced, where names cannot be exchanged.
_ASIDE = "-old"
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux
_HERE = -100  # AT_FDCWD


class Mark(msgspec.Struct):
    """The attempt that published a folder.

    Attributes:
        job: The job's id.
        fence: The fencing number of its attempt.
    """

    job: str
    fence: int


@dataclass(frozen=True)
class Output:
    """One output of an attempt.

    Attributes:
        target: Where readers look.
        staging: Where the attempt writes.
        job: The job's id.
        fence: The fencing number of the attempt.
    """

    target: Path
    staging: Path
    job: str
    fence: int

    @classmethod
    def make(cls, path: str | Path, job: str, start: int, fence: int) -> Output:
        """Returns the output of an attempt.

        Raises:
            ValidationError: The path is none of a file system.
        """
        text = str(path).removeprefix("file://")
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text):
            raise ValidationError(
                "path",
                "a path of a shared file system",
                str(path),
                f"job.output needs a path of a shared file system, got {str(path)!r}: a folder of an object "
                "store cannot be renamed in one step; write to a table format such as Delta or Iceberg, "
                "whose commit is one step",
            )
        target = Path(os.path.abspath(text))
        if not target.name:
            raise ValidationError("path", "a folder below the root", str(path))
        return cls(target, target.with_name(f"{_prefix(target, job)}{start}"), job, fence)

    def check_beside(self, other: Output) -> None:
        """Refuses a second output at the same place, or one within the other.

        Raises:
            ValidationError: They overlap.
        """
        if self.target == other.target or self.target in other.target.parents:
            raise ValidationError("path", "apart from other outputs of the job", str(other.target))
        if other.target in self.target.parents:
            raise ValidationError("path", "apart from other outputs of the job", str(other.target))

    def clear(self) -> None:
        """Removes what this attempt and earlier ones of the job left, and makes the parent folder.

        Old content whose replacement was killed half-way is put back.
        """
        self.target.parent.mkdir(parents=True, exist_ok=True)
        prefix = _prefix(self.target, self.job)
        left = sorted(found for found in self.target.parent.iterdir() if found.name.startswith(prefix))
        for found in left:
            if found.name.endswith(_ASIDE) and not os.path.lexists(self.target):
                os.rename(found, self.target)
                _sync(self.target.parent)
            else:
                _remove(found)

    def publish(self) -> bool:
        """Puts what was written in the target's place; returns False if nothing was written.

        Raises:
            LeaseLost: A later attempt of the job has published already.
        """
        if not self.staging.exists():
            return False
        if self.staging.is_dir():
            there = _mark_of(self.target)
            if there is not None and there.job == self.job and there.fence > self.fence:
                raise LeaseLost(self.job)
            mark = self.staging / MARK
            mark.write_bytes(msgspec.json.encode(Mark(self.job, self.fence)))
            _sync(mark)
        _sync(self.staging)
        if self.target.exists():
            _exchange(self.staging, self.target)
            _remove(self.staging)  # it is the old content now
        else:
            os.rename(self.staging, self.target)
        _sync(self.target.parent)
        return True

    def discard(self) -> None:
        """Removes what was written."""
        _remove(self.staging)


def _prefix(target: Path, job: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", job)[:64]
    if plain != job:
        plain += f"-{hashlib.sha256(job.encode()).hexdigest()[:12]}"
    return f".{target.name}.{plain}.attempt-"


def _mark_of(folder: Path) -> Mark | None:
    try:
        return msgspec.json.decode((folder / MARK).read_bytes(), type=Mark)
    except (OSError, msgspec.MsgspecError):
        return None


def _exchange(one: Path, other: Path) -> None:
    """Exchanges the names of two folders in one step; in two where the system cannot."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        call = None
    if call is None or call(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) != 0:
        aside = one.with_name(f"{one.name}{_ASIDE}")
        os.rename(other, aside)
        try:
            os.rename(one, other)
        except BaseException:
            os.rename(aside, other)
            raise
        os.rename(aside, one)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def _sync(path: Path) -> None:
    """Asks the system to write a file or a folder's entries, so that a crash of the machine keeps them."""
    with contextlib.suppress(OSError):  # some file systems cannot
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
