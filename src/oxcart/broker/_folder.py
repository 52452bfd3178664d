"""Keeps the embedded server's data folder private: its files contain the payloads of jobs."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from oxcart.broker._hold import EmbeddedServerError

#: The files that keeper and server write into the folder.
_OURS = (
    ".gitignore",
    "appendonlydir",
    "dump.rdb",
    "keeper.lock",
    "keeper.log",
    "keeper.sock",
    "server.json",
    "start.lock",
    "valkey.sock",
)
_OURS_BEGIN = ("server.json.", "temp-")
_OTHERS, _OTHERS_WRITE = 0o077, 0o022


def check(folder: Path) -> None:
    """Refuses a folder of another user: that user could read the data, or pose as its server.

    Raises:
        EmbeddedServerError: The folder is another user's.
    """
    try:
        found = folder.stat()
    except OSError:
        return  # it does not exist yet, or cannot be used: its first use raises the error
    if found.st_uid != os.geteuid():
        raise EmbeddedServerError(
            f"the data folder {folder} belongs to user {found.st_uid}, and this process runs as user "
            f"{os.geteuid()}: set OXCART_HOME to a folder of its own, or OXCART_URL to a server"
        )


def prepare(folder: Path) -> None:
    """Makes the folder, or tightens an existing one: only its user may read its contents.

    A folder that holds files of others keeps its own mode; the data in it is tightened.

    Raises:
        EmbeddedServerError: The folder is another user's, or others may write to it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check(folder)
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & _OTHERS:
        if all(_is_ours(entry.name) for entry in folder.iterdir()):
            folder.chmod(mode & ~_OTHERS)
        elif mode & _OTHERS_WRITE:
            raise EmbeddedServerError(
                f"the data folder {folder} holds other files, and other users may write to it (mode "
                f"{mode:04o}): set OXCART_HOME to a folder of its own"
            )
    _tighten(entry for entry in folder.iterdir() if _is_ours(entry.name))
    ignore = folder / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")


def _is_ours(name: str) -> bool:
    return name in _OURS or name.startswith(_OURS_BEGIN)


def _tighten(entries: Iterable[Path]) -> None:
    for entry in entries:
        with contextlib.suppress(FileNotFoundError):  # a socket or a temporary file that was just removed
            mode = entry.lstat().st_mode
            if stat.S_ISLNK(mode):
                continue
            if stat.S_IMODE(mode) & _OTHERS:
                entry.chmod(stat.S_IMODE(mode) & ~_OTHERS)
            if stat.S_ISDIR(mode):
                _tighten(entry.iterdir())
