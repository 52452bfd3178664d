"""The process that owns the Valkey of one data folder.

It is run by file path and uses only the standard library, so that it starts in a few milliseconds:

    python -I -S _keeper.py FOLDER SERVER_BINARY HOLD_FD

A user of the folder has a connection to the keeper, over `keeper.sock` or, if that path is too long
for a socket, over loopback. The kernel closes it however the user ends, so the open connections are the
users. The process that starts a keeper passes it one end of a socket pair, HOLD_FD, and is its first user.

When the last user has been gone for LINGER seconds, the server is shut down and the keeper ends. A server
that ends by itself is started again. The server inherits the folder's lock, so that the lock is free only
when neither keeper nor server is left: no two servers ever write the same files.

Both sides speak lines of JSON. From a user: {"op": "join", "pid", "name", "appendfsync", "token"};
{"op": "leave"}, stop at once if there is no other user; {"op": "status", "token"}. To a user: {"state":
"waiting" | "starting" | "ready" | "stopping" | "failed", …}; "ready" carries the server's address.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from typing import Any, NoReturn

LINGER = 0.5  # seconds that a server without users stays, so that a next command finds it
SOCKET_PATH_LIMIT = 100  # bytes; the kernel's own limit is 104 or 108

_TICK = 1.0  # seconds between looks at the folder, and between signs of life to a waiting user
_LOCK_LIMIT = 20.0  # for the last owner of the folder to end
_ORPHAN_LIMIT = 5.0  # for a server whose keeper was killed to end before it is killed too
_STOP_LIMIT = 10.0  # for our server to shut down before it is killed
_HELLO_LIMIT = 0.5  # for a connection to send its request
_RESTARTS = 5  # failed starts in a row before we give up
_LOG_LIMIT = 1 << 20  # bytes
_LINE_LIMIT = 1 << 16  # bytes
_FSYNC = ("", "no", "everysec", "always")
_PR_SET_PDEATHSIG = 1

_CONFIG = """\
appendonly yes
appendfsync {appendfsync}
aof-load-truncated yes
save ""
maxmemory-policy noeviction
proc-title-template "{{title}} oxcart"
daemonize no
"""


class KeeperError(Exception):
    """A reason to give up; it is sent to users."""


class User:
    """One connection: a caller until it joins, then a user."""

    def __init__(self, link: socket.socket, trusted: bool) -> None:
        link.setblocking(False)
        self.link = link
        self.trusted = trusted
        self.since = time.monotonic()
        self.joined = False
        self.leaving = False
        self.pid = 0
        self.name = ""
        self._buffer = b""

    def lines(self) -> list[bytes] | None:
        """Return the lines that have arrived; None when the other side has gone."""
        try:
            data = self.link.recv(_LINE_LIMIT)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data or len(self._buffer) > _LINE_LIMIT:
            return None
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return lines

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; a user that does not read misses it and does not delay the others."""
        with contextlib.suppress(OSError):
            self.link.send(json.dumps(message).encode() + b"\n")


class Server:
    """The valkey-server child."""

    def __init__(self, binary: str) -> None:
        self.on_path = True
        self.generation = 0
        self.port = 0
        self._binary = binary
        self._password = secrets.token_hex(24)
        self._fsync = ""
        self._running_fsync = ""
        self._child: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._child.pid if self._child else 0

    @property
    def address(self) -> dict[str, Any]:
        if self.on_path:
            return {"path": "valkey.sock"}
        return {"host": "127.0.0.1", "port": self.port, "password": self._password}

    def start(self, lock: int) -> None:
        """Start the server; it holds the folder's lock as long as it lives, and ends when we do."""
        if self.on_path:
            where = "port 0\nunixsocket valkey.sock\nunixsocketperm 700\n"
        else:
            self.port = self.port or _free_port()
            where = f"port {self.port}\nbind 127.0.0.1\nrequirepass {self._password}\n"
        self.generation += 1
        self._running_fsync = self._fsync or "everysec"
        libc = ctypes.CDLL(None) if sys.platform == "linux" else None
        keeper = os.getpid()

        def die_with_keeper() -> None:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            if libc is not None:
                # SIGTERM, not SIGKILL: the server then still writes out what it has acknowledged.
                libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
                if os.getppid() != keeper:
                    os._exit(1)

        # The configuration names no path (the server runs in the folder), so nothing needs quoting,
        # and goes in on stdin, where no other user sees the password.
        self._child = subprocess.Popen(
            [self._binary, "-"],
            stdin=subprocess.PIPE,
            start_new_session=True,
            pass_fds=(lock,),
            preexec_fn=die_with_keeper,
        )
        if libc is None:
            self._watcher = subprocess.Popen(
                ["/bin/sh", "-c", f"read _; kill {self._child.pid}"],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._child.stdin as config:
            config.write((where + _CONFIG.format(appendfsync=self._running_fsync)).encode())

    def has_ended(self) -> bool:
        return self._child is None or self._child.poll() is not None

    def was_killed(self) -> bool:
        return self._child is not None and (self._child.returncode or 0) < 0

    def answers(self) -> bool:
        """Return whether the server answers PING; it does not while it loads its data."""
        return self._ask("PING") == b"+PONG"

    def wish_fsync(self, wish: str) -> None:
        """Record a user's wish for `appendfsync`; the strictest applies to all."""
        self._fsync = max(self._fsync, wish, key=_FSYNC.index)

    def apply_fsync(self) -> None:
        """Apply the strictest wish to the running server."""
        if self._fsync not in ("", self._running_fsync) and self._ask(
            "CONFIG", "SET", "appendfsync", self._fsync
        ):
            self._running_fsync = self._fsync

    def stop(self) -> None:
        """Shut down cleanly, which syncs the append-only file; by force after a limit."""
        if self._child is not None and self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(_STOP_LIMIT)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
        self.bury()

    def bury(self) -> None:
        """Clean up after a dead server: a child that rewrites the file, and the watcher."""
        if self._child is not None:
            with contextlib.suppress(OSError):
                os.killpg(self._child.pid, signal.SIGKILL)
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.wait()
            self._watcher = None

    def _ask(self, *command: str) -> bytes:
        """Send one command and return the first line of its reply; nothing when there is none."""
        commands = [("AUTH", self._password), command] if not self.on_path else [command]
        reply = b""
        with contextlib.suppress(OSError), self._connect() as link:
            for words in commands:
                bulks = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
                link.sendall(f"*{len(words)}\r\n{bulks}".encode())
                reply = link.recv(512).split(b"\r\n")[0]
        return reply

    def _connect(self) -> socket.socket:
        link = socket.socket(socket.AF_UNIX if self.on_path else socket.AF_INET)
        link.settimeout(0.5)
        try:
            link.connect("valkey.sock" if self.on_path else ("127.0.0.1", self.port))
        except BaseException:
            link.close()
            raise
        return link


class Keeper:
    """The loop: users come and go, and the server is kept up while there are any."""

    def __init__(self, folder: str, binary: str, starter: socket.socket) -> None:
        self._folder = folder
        self._server = Server(binary)
        self._lock = -1
        self._listener: socket.socket | None = None
        self._token = secrets.token_hex(24)
        self._selector = selectors.DefaultSelector()
        self._users: set[User] = set()
        self._started = time.time()
        self._empty_since = self._reported = self._looked = time.monotonic()
        self._ready = self._was_ready = self._stop_wanted = False
        self._failed_starts = 0
        self._retry_at = self._server_since = 0.0
        self._watch_signals()
        self._admit(starter, trusted=True).joined = True

    def run(self) -> None:
        """Keep the folder's server up until it has no user."""
        try:
            os.chdir(self._folder)
            if self._take_lock():
                self._listen()
                self._start_server()
                while self._is_needed():
                    self._wait(_TICK if self._ready else 0.003)
                    self._see_to_server()
        except (KeeperError, OSError) as error:
            _log(f"giving up: {error}")
            self._tell_all({"state": "failed", "error": str(error)})
        finally:
            self._close()

    # Before the server

    def _take_lock(self) -> bool:
        """Wait for the folder's lock; False if the user that needed it has gone meanwhile."""
        self._lock = os.open("keeper.lock", os.O_RDWR | os.O_CREAT, 0o600)
        began = time.monotonic()
        while self._any_joined() and not self._stop_wanted:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
            else:
                return True
            waited = time.monotonic() - began
            if waited > _LOCK_LIMIT:
                raise KeeperError(
                    f"another process holds keeper.lock and did not end within {_LOCK_LIMIT:g} s"
                )
            if waited > _ORPHAN_LIMIT:
                _kill_orphan()
            self._tell_waiting("waiting")
            self._wait(0.01)
        return False

    def _listen(self) -> None:
        """Open the socket for users; on loopback if the folder cannot have a socket."""
        for name in ("keeper.sock", "valkey.sock", "server.json"):
            with contextlib.suppress(OSError):
                os.unlink(name)
        try:
            if len(os.fsencode(os.path.join(self._folder, "valkey.sock"))) > SOCKET_PATH_LIMIT:
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind("keeper.sock")
            os.chmod("keeper.sock", 0o600)
        except OSError as error:  # a shared folder of a virtual machine, say
            _log(f"no sockets in this folder ({error.strerror}), so on loopback")
            self._server.on_path = False
            self._listener = socket.socket(socket.AF_INET)
            self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(512)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _watch_signals(self) -> None:
        """Let signals end a wait: Python writes their numbers to a socket that the selector watches."""
        self._signals, self._signal_writer = socket.socketpair()
        self._signals.setblocking(False)
        self._signal_writer.setblocking(False)
        signal.set_wakeup_fd(self._signal_writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        self._selector.register(self._signals, selectors.EVENT_READ, self._take_signals)

    # The loop

    def _wait(self, limit: float) -> None:
        """Handle what happens within the limit (seconds)."""
        if not self._any_joined():
            limit = min(limit, max(0.01, self._empty_since + LINGER - time.monotonic()))
        for key, _ in self._selector.select(limit):
            key.data()
        now = time.monotonic()
        for user in [u for u in self._users if not (u.joined or u.leaving) and now - u.since > _HELLO_LIMIT]:
            self._drop(user)

    def _is_needed(self) -> bool:
        now = time.monotonic()
        if now - self._looked > _TICK:
            self._looked = now
            _bound_log()
            if not self._is_in_place():
                _log("the folder has gone")
                return False
        if self._stop_wanted:
            return False
        if self._any_joined() or now - self._empty_since < LINGER:
            return True
        self._accept()  # users that came at the last moment
        return any(not user.leaving for user in self._users)

    def _any_joined(self) -> bool:
        return any(user.joined for user in self._users)

    def _is_in_place(self) -> bool:
        """Return whether our files are still where users look for them."""
        try:
            in_place = os.path.samestat(
                os.stat(os.path.join(self._folder, "keeper.lock")), os.fstat(self._lock)
            )
            if self._server.on_path and self._ready:
                in_place = in_place and os.path.exists("keeper.sock") and os.path.exists("valkey.sock")
            return in_place
        except OSError:
            return False

    def _start_server(self) -> None:
        self._server.start(self._lock)
        self._server_since = time.monotonic()
        self._write_record()

    def _see_to_server(self) -> None:
        """Notice that the server has become ready, or has ended and must be started again."""
        now = time.monotonic()
        if self._retry_at:
            if now >= self._retry_at:
                self._retry_at = 0.0
                self._start_server()
        elif self._server.has_ended():
            self._server.bury()
            _log(f"the server (pid {self._server.pid}) has ended by itself")
            self._failed_starts = 0 if self._ready else self._failed_starts + 1
            # A server that ends with a reason has read something unusable, and would again. The exception is
            # a port that another process uses.
            hopeful = self._was_ready or self._server.was_killed() or not self._server.on_path
            if self._failed_starts > (_RESTARTS if hopeful else 0):
                raise KeeperError(f"the server does not start; keeper.log ends with:\n{_log_tail()}")
            self._server.port = 0 if self._failed_starts else self._server.port
            self._retry_at = now + 0.1 * (self._failed_starts or now - self._server_since < _TICK)
            self._ready = False
            self._tell_all({"state": "starting"})
        elif not self._ready and self._server.answers():
            self._server.apply_fsync()
            self._failed_starts = 0
            self._ready = self._was_ready = True
            self._write_record()
            self._tell_all(self._ready_message())
        if not self._ready:
            self._tell_waiting("starting")

    def _take_signals(self) -> None:
        with contextlib.suppress(BlockingIOError):
            numbers = self._signals.recv(4096)
            self._stop_wanted |= signal.SIGTERM in numbers or signal.SIGINT in numbers

    # Users

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while self._listener is not None:
                self._admit(self._listener.accept()[0], trusted=self._server.on_path)

    def _admit(self, link: socket.socket, trusted: bool) -> User:
        user = User(link, trusted)
        self._users.add(user)
        self._selector.register(link, selectors.EVENT_READ, lambda: self._hear(user))
        return user

    def _drop(self, user: User) -> None:
        self._users.discard(user)
        self._selector.unregister(user.link)
        user.link.close()
        if user.joined and not self._any_joined():
            self._empty_since = time.monotonic()

    def _hear(self, user: User) -> None:
        lines = user.lines()
        if lines is None:
            self._drop(user)
            return
        for line in lines:
            if user in self._users and not self._obey(user, line):
                self._drop(user)

    def _obey(self, user: User, line: bytes) -> bool:
        """Handle a user's request; False if its connection can be closed."""
        try:
            message = json.loads(line)
            op, token = message["op"], str(message.get("token"))
        except (ValueError, TypeError, KeyError, AttributeError):
            return False
        user.trusted = user.trusted or secrets.compare_digest(token.encode(), self._token.encode())
        if not user.trusted:
            return False
        if op == "join":
            self._join(user, message)
            return True
        if op == "status":
            user.send(self._status())
            return False
        if op == "leave":
            user.joined, user.leaving = False, True
            if not self._any_joined():
                self._empty_since = -LINGER  # as if it had been gone for long
                return True  # its connection ends when we do, which is what it waits for
        return False

    def _join(self, user: User, message: dict[str, Any]) -> None:
        user.joined = True
        user.pid, user.name = message.get("pid", 0), message.get("name", "")
        for other in [u for u in self._users if u.leaving]:
            self._drop(other)
        wish = message.get("appendfsync")
        self._server.wish_fsync(wish if wish in _FSYNC else "")
        if self._ready:
            self._server.apply_fsync()
        user.send(self._ready_message() if self._ready else {"state": "starting"})

    def _tell_all(self, message: dict[str, Any]) -> None:
        self._reported = time.monotonic()
        for user in self._users:
            if user.joined:
                user.send(message)

    def _tell_waiting(self, state: str) -> None:
        if time.monotonic() - self._reported > _TICK:
            self._tell_all({"state": state})

    def _ready_message(self) -> dict[str, Any]:
        return {"state": "ready", "generation": self._server.generation, "server": self._server.address}

    def _status(self) -> dict[str, Any]:
        return {
            "state": "ready" if self._ready else "starting",
            "keeper_pid": os.getpid(),
            "server_pid": self._server.pid,
            "generation": self._server.generation,
            "started": self._started,
            "server": self._server.address,
            "users": [{"pid": user.pid, "name": user.name} for user in self._users if user.joined],
        }

    # The record and the end

    def _write_record(self) -> None:
        """Write `server.json`: where keeper and server are, for users over loopback and for people."""
        record = {**self._status(), "token": self._token}
        del record["users"]
        if not self._server.on_path and self._listener is not None:
            record["keeper_port"] = self._listener.getsockname()[1]
        temporary = f"server.json.{os.getpid()}"
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(record, file, indent=1)
        os.replace(temporary, "server.json")

    def _close(self) -> None:
        """Accept no more users, notify the present ones, and stop the server."""
        if self._listener is not None:
            for name in ("keeper.sock", "server.json"):
                with contextlib.suppress(OSError):
                    os.unlink(name)
            self._listener.close()
            self._tell_all({"state": "stopping"})
        self._server.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _kill_orphan() -> None:
    """Kill a server whose keeper was killed and that does not end: one in an endless script, say."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        with open("server.json") as file:
            record = json.load(file)
        # The folder's lock is held and the pid runs in the folder: it is that server, not a later process.
        if not _is_alive(record["keeper_pid"]) and os.path.samefile(f"/proc/{record['server_pid']}/cwd", "."):
            os.kill(record["server_pid"], signal.SIGKILL)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _log(message: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} keeper {os.getpid()}: {message}", flush=True)


def _bound_log() -> None:
    with contextlib.suppress(OSError):
        if os.fstat(1).st_size > _LOG_LIMIT:
            os.ftruncate(1, 0)  # it is open for appending, by the server too


def _log_tail() -> str:
    with contextlib.suppress(OSError), open("keeper.log", errors="replace") as log:
        return "".join(log.readlines()[-8:])
    return ""


def main() -> NoReturn:
    """Leave the process that started us and keep the folder."""
    folder, binary, hold = sys.argv[1:4]
    # A second fork: the user that starts us does not have to wait for our end.
    if os.fork():
        os._exit(0)
    os.umask(0o077)  # the server inherits it: the files that it writes contain payloads
    _bound_log()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # the server inherits it, and needs one per connection
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))
    Keeper(folder, binary, socket.socket(fileno=int(hold))).run()
    sys.exit(0)


if __name__ == "__main__":
    main()
