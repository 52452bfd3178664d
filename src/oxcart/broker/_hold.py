"""A process's hold on the embedded server of one folder: the connection that its keeper counts.

`_keeper.py` describes the other end and the messages.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oxcart.broker.location import Location
from oxcart.model.errors import BrokerUnavailable

_KEEPER = Path(__file__).with_name("_keeper.py")
_SOCKET_PATH_LIMIT = 100  # bytes, as the keeper's
_FIRST_WORD_LIMIT = 5.0  # seconds; a keeper greets at once
_SILENCE_LIMIT = 10.0  # seconds; a busy keeper sends a sign of life every second

#: Connections that a forked child must close: a copy looks like a user, or like a living keeper.
_not_for_children: set[socket.socket | int] = set()

#: Locked while a keeper is started, and briefly by every fork. A child forked meanwhile would inherit the
#: pipe whose end `Popen` waits for, and the start would last as long as that child.
_spawning = threading.RLock()


class EmbeddedServerError(BrokerUnavailable):
    """The embedded server cannot be started or reached."""


class HoldLost(Exception):
    """The keeper has ended or is ending; another one can be started."""


class Hold:
    """A connection to a keeper that counts us among its users."""

    def __init__(self, link: socket.socket, folder: Path) -> None:
        self._link = link
        self._folder = folder
        self._buffer = b""
        self._location: Location | None = None
        self._end: HoldLost | EmbeddedServerError | None = None
        link.setblocking(False)
        _not_for_children.add(link)

    def greet(self, appendfsync: str, token: str | None) -> None:
        """Send the name and the pid of this process."""
        name = os.path.basename(sys.argv[0]) if sys.argv else ""
        self._send(
            {"op": "join", "pid": os.getpid(), "name": name, "appendfsync": appendfsync, "token": token}
        )

    def location(self) -> Location:
        """Return where the server is, at once if it is up, after a while if it is being started.

        Raises:
            HoldLost: There is no keeper at the other end, or no longer.
            EmbeddedServerError: The keeper could not start the server.
        """
        limit = _FIRST_WORD_LIMIT if self._location is None else _SILENCE_LIMIT
        self._listen()
        while self._location is None:
            if not self._listen(limit):
                raise HoldLost(f"its keeper gave no sign of life for {limit:g} s")
            limit = _SILENCE_LIMIT
        return self._location

    def glance(self) -> Location | None:
        """Return where the server is if it is up, without waiting for anything."""
        try:
            self._listen()
        except (HoldLost, EmbeddedServerError):
            return None
        return self._location

    def leave(self, wait: float) -> None:
        """Disconnect; with a time to wait (seconds), stop the server now if we are its last user."""
        if wait > 0:
            with contextlib.suppress(HoldLost):
                self._send({"op": "leave"})
                end = time.monotonic() + wait
                while self._hear(max(0.0, end - time.monotonic())):
                    pass
        self.close()

    def close(self) -> None:
        _not_for_children.discard(self._link)
        self._link.close()

    def _listen(self, limit: float = 0.0) -> bool:
        """Handle the keeper's messages within the limit; its last error is remembered and raised again.

        Returns:
            Whether there was a message.
        """
        messages: list[dict[str, Any]] = []
        if self._end is None:
            try:
                messages = self._hear(limit)
                for message in messages:
                    self._heed(message)
            except (HoldLost, EmbeddedServerError) as end:
                self._end = end
        if self._end is not None:
            raise self._end
        return bool(messages)

    def _heed(self, message: dict[str, Any]) -> None:
        state = message.get("state")
        if state == "ready":
            self._location = _location(self._folder, message["server"])
        elif state == "stopping":
            raise HoldLost("its keeper is stopping")
        elif state == "failed":
            raise EmbeddedServerError(f"the embedded server in {self._folder}: {message.get('error')}")
        else:
            self._location = None

    def _hear(self, limit: float) -> list[dict[str, Any]]:
        """Return the keeper's messages within the limit; HoldLost if it has hung up, or is no keeper."""
        self._link.settimeout(limit)
        try:
            data = self._link.recv(65536)
        except (BlockingIOError, TimeoutError):
            return []
        except OSError as error:
            raise HoldLost(str(error)) from error
        if not data:
            raise HoldLost("its keeper has ended")
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        try:
            messages = [json.loads(line) for line in lines]
        except ValueError:
            messages = [None]
        if not all(isinstance(message, dict) for message in messages):
            raise HoldLost("the process that answers there is not its keeper")
        return messages

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._link.send(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise HoldLost(str(error)) from error


def join(folder: Path, appendfsync: str) -> Hold | None:
    """Connect to the folder's keeper; None when there is none."""
    called = _call(folder)
    if called is None:
        return None
    link, token = called
    hold = Hold(link, folder)
    try:
        hold.greet(appendfsync, token)
    except HoldLost:
        hold.close()
        return None
    return hold


def start(folder: Path, binary: Path, appendfsync: str) -> Hold:
    """Start a keeper for the folder, be its first user, and wait until the server is up."""
    ours, theirs = socket.socketpair()
    hold = Hold(ours, folder)
    _not_for_children.add(theirs)
    try:
        with _spawning, open(folder / "keeper.log", "ab", opener=_private) as log:
            process = subprocess.Popen(
                [_python(), "-I", "-S", str(_KEEPER), str(folder), str(binary), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        _not_for_children.discard(theirs)
        theirs.close()
        # This first process only forks the keeper and ends.
        if process.wait():
            raise EmbeddedServerError(f"the keeper for {folder} did not start; see keeper.log there")
        hold.greet(appendfsync, None)
        hold.location()
    except BaseException:
        _not_for_children.discard(theirs)
        theirs.close()
        hold.close()
        raise
    return hold


def _private(path: str, flags: int) -> int:
    """Opens a file that only its user may read."""
    return os.open(path, flags, 0o600)


def ask_status(folder: Path) -> dict[str, Any] | None:
    """Ask the folder's keeper for its status, without becoming a user; None when there is none."""
    called = _call(folder)
    if called is None:
        return None
    link, token = called
    with link, contextlib.suppress(OSError, ValueError):
        link.settimeout(_FIRST_WORD_LIMIT)
        link.sendall(json.dumps({"op": "status", "token": token}).encode() + b"\n")
        with link.makefile("rb") as answer:
            status: dict[str, Any] = json.loads(answer.readline(1 << 20))
            status["location"] = _location(folder, status.pop("server"))
            return status
    return None


@contextlib.contextmanager
def starting(folder: Path) -> Iterator[None]:
    """Be the one process that starts a keeper for the folder; HoldLost if another one is doing it."""
    import fcntl

    lock = os.open(folder / "start.lock", os.O_RDWR | os.O_CREAT, 0o600)
    _not_for_children.add(lock)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HoldLost("another process is starting its keeper") from None
        try:
            yield
        finally:
            # Not by closing alone: a child forked in this moment has the file open too.
            fcntl.flock(lock, fcntl.LOCK_UN)
    finally:
        _not_for_children.discard(lock)
        os.close(lock)


def forget_in_child() -> None:
    """Close, in a forked child, what belongs to its parent."""
    for item in _not_for_children:
        with contextlib.suppress(OSError):
            if isinstance(item, int):
                os.close(item)
            else:
                item.close()
    _not_for_children.clear()


def _before_fork() -> None:
    _spawning.acquire()


def _after_fork() -> None:
    _spawning.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


def _call(folder: Path) -> tuple[socket.socket, str | None] | None:
    """Connect to the folder's keeper, if one listens; with the token that it requires."""
    path = str(folder / "keeper.sock")
    if len(os.fsencode(path)) <= _SOCKET_PATH_LIMIT:
        link = _connect(socket.AF_UNIX, path)
        if link is not None:
            return link, None
    try:
        record = json.loads((folder / "server.json").read_bytes())
        port, token = int(record["keeper_port"]), str(record["token"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    link = _connect(socket.AF_INET, ("127.0.0.1", port))
    return None if link is None else (link, token)


def _connect(family: socket.AddressFamily, address: Any) -> socket.socket | None:
    link = socket.socket(family)
    try:
        link.settimeout(_FIRST_WORD_LIMIT)
        link.connect(address)
    except OSError:
        link.close()
        return None
    except BaseException:
        link.close()
        raise
    return link


def _location(folder: Path, server: dict[str, Any]) -> Location:
    if "path" in server:
        return Location("unix", path=str(folder / server["path"]))
    return Location("standalone", ((server["host"], server["port"]),), password=server["password"])


def _python() -> str:
    """Find an interpreter for the keeper; any will do, since it needs only the standard library."""
    for candidate in (sys.executable, getattr(sys, "_base_executable", None)):
        # Where Python is embedded in another program, these can name that program.
        if candidate and os.path.basename(candidate).lower().startswith(("python", "pypy")):
            return str(candidate)
    beside = os.path.join(sys.exec_prefix, "bin", "python3")
    found = beside if os.access(beside, os.X_OK) else shutil.which("python3")
    if found is None:
        raise EmbeddedServerError("no Python interpreter found to run the embedded server's keeper")
    return found
