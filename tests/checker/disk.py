"""The server's disk: a small one of its own, which the nemesis fills."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

#: MiB of the disk: many times the AOF of a round, so that only the nemesis fills it.
SIZE = 64


@cache
def missing() -> str:
    """Returns why no disk can be mounted here, "" if one can."""
    with tempfile.TemporaryDirectory(prefix="oxcart-disk-") as folder:
        return _mount(Path(folder)) or _unmount(Path(folder))


class Disk:
    """Fills and frees the disk of a folder."""

    def __init__(self, folder: Path) -> None:
        self._filler = folder / "filler"

    def fill(self) -> None:
        """Takes all space, so that the next write fails."""
        with self._filler.open("wb", buffering=0) as file:
            for block in (1 << 20, 1 << 12, 1):
                try:
                    while True:
                        file.write(b"x" * block)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        """Gives the space back."""
        self._filler.unlink(missing_ok=True)


@contextlib.contextmanager
def mounted(folder: Path) -> Iterator[Disk | None]:
    """Mounts a small disk over an empty folder; None where that is not possible."""
    if missing():
        yield None
        return
    if why := _mount(folder):
        raise OSError(why)
    try:
        yield Disk(folder)
    finally:
        _unmount(folder)
        with contextlib.suppress(OSError):  # the server could not remove a folder that is in use
            folder.rmdir()


def _mount(folder: Path) -> str:
    if os.geteuid() != 0:
        return "a disk can be mounted by root alone"
    return _run("mount", "-t", "tmpfs", "-o", f"size={SIZE}m", "oxcart-disk", str(folder))


def _unmount(folder: Path) -> str:
    return _run("umount", str(folder))


def _run(*words: str) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        return str(error)
    return done.stderr.strip() if done.returncode else ""
