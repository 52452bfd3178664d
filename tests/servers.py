"""Private Valkey servers for tests: `ValkeyServer` and `ValkeyCluster`.

Each runs the packaged binary on free loopback ports in a folder of its own, is ready when the constructor or
`start()` returns, and dies with the test process however that ends.

    with ValkeyServer(appendonly=True) as server:
        redis.Redis.from_url(server.url).set("k", "v")
        server.kill()
        server.restart()
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from oxcart.broker.embedded import binary_path

_LIMIT = 20.0
_POLL = 0.005


def wait_until(condition: Callable[[], object], what: str, limit: float = _LIMIT) -> None:
    """Poll until the condition holds; an AssertionError naming it after the limit (seconds)."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit:g} s: {what}")
        time.sleep(_POLL)


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ValkeyServer:
    """One private server.

    Args:
        start: Start at once (the default).
        port: Take this port instead of a free one.
        **options: Server options, underscores for dashes: `appendonly=True`, `maxmemory="20mb"`.
    """

    def __init__(self, *, start: bool = True, port: int | None = None, **options: Any) -> None:
        self._wanted_port = port
        self.port = port or 0
        self.options = {"save": "", "appendfsync": "everysec", **options}
        self.folder = Path(tempfile.mkdtemp(prefix="oxcart-valkey-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        if start:
            self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        path = self.folder / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def client(self, **options: Any) -> redis.Redis:
        """Return a plain redis-py client with text replies."""
        return redis.Redis(host="127.0.0.1", port=self.port, **{"decode_responses": True, **options})

    def start(self) -> Self:
        """Start and wait until the server answers PING."""
        if self.running:
            return self
        for attempt in range(5):
            # A free port can be taken between the probe and the bind; a chosen or used one is kept.
            if not self.port or (attempt and self._wanted_port is None and not self._used):
                self.port = free_port()
            self._spawn()
            if self._await_ready():
                self._used = True
                return self
            self._reap()
            if "Address already in use" not in self.log:
                break
            time.sleep(0.05)
        raise AssertionError(f"valkey-server did not start on port {self.port}:\n{self.log[-2000:]}")

    _used = False

    def stop(self) -> None:
        """Shut the server down cleanly (SIGTERM: the AOF is synced) and remove its folder."""
        self.halt()
        shutil.rmtree(self.folder, ignore_errors=True)

    def halt(self) -> None:
        """Shut the server down cleanly and keep its data, for a later `start()`."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would; its data stays."""
        self._end(signal.SIGKILL)

    def restart(self, *, kill: bool = False) -> None:
        """Stop (or kill) and start again on the same port and data."""
        if kill:
            self.kill()
        else:
            self.halt()
        self.start()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing is answered until `thaw()`."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _spawn(self) -> None:
        arguments = [str(binary_path()), "--port", str(self.port), "--bind", "127.0.0.1"]
        for name, value in self.options.items():
            text = {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value
            arguments += [f"--{name.replace('_', '-')}", str(text)]
        with (self.folder / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                arguments,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        # The watcher's stdin ends when this process does, by whatever signal: then the server goes too.
        # (PR_SET_PDEATHSIG would end it with the thread that started it.)
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", f'read _; kill -9 {self._process.pid}; rm -rf -- "$1"', "sh", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _await_ready(self) -> bool:
        assert self._process is not None
        end = time.monotonic() + _LIMIT
        while time.monotonic() < end and self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as link:
                link.sendall(b"PING\r\n")
                # NOAUTH is an answer too: the server is up and wants its password.
                if link.recv(64).startswith((b"+PONG", b"-NOAUTH")) and self._process.poll() is None:
                    return True
            time.sleep(_POLL)
        return False

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            # A stopped process sees SIGTERM only once it goes on.
            self._process.send_signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
        self._reap()

    def _reap(self) -> None:
        # The watcher first: after the server is waited for, its pid may belong to someone else.
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.wait()
            if self._watcher.stdin is not None:
                self._watcher.stdin.close()
            self._watcher = None
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()
            self._process = None


class ValkeyCluster:
    """A cluster of masters without replicas, with all slots covered when the constructor returns."""

    SLOTS = 16384

    def __init__(self, masters: int = 3, **options: Any) -> None:
        self.nodes: list[ValkeyServer] = []
        try:
            for _ in range(masters):
                self.nodes.append(
                    ValkeyServer(
                        cluster_enabled=True,
                        # By default port + 10000, which can be past the last port.
                        cluster_port=free_port(),
                        cluster_node_timeout=3000,
                        cluster_announce_ip="127.0.0.1",
                        **options,
                    )
                )
            self._join()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def client(self, **options: Any) -> redis.RedisCluster:
        """Return a redis-py cluster client with text replies."""
        return redis.RedisCluster(
            host="127.0.0.1", port=self.nodes[0].port, **{"decode_responses": True, **options}
        )

    def wait_ok(self) -> None:
        """Wait until every node says cluster_state:ok and knows all the others."""
        for node in self.nodes:
            with contextlib.closing(node.client()) as client:
                wait_until(partial(self._is_ok, client), f"cluster ok on port {node.port}")

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _join(self) -> None:
        bounds = [self.SLOTS * i // len(self.nodes) for i in range(len(self.nodes) + 1)]
        first = self.nodes[0]
        for i, node in enumerate(self.nodes):
            client: Any = node.client()
            with contextlib.closing(client):
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", bounds[i], bounds[i + 1] - 1)
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
                if node is not first:
                    bus = first.options["cluster_port"]
                    client.execute_command("CLUSTER", "MEET", "127.0.0.1", first.port, bus)
        self.wait_ok()

    def _is_ok(self, client: Any) -> bool:
        reply: str = client.execute_command("CLUSTER", "INFO")
        info = dict(line.split(":", 1) for line in reply.splitlines())
        return (
            info["cluster_state"] == "ok"
            and info["cluster_slots_ok"] == str(self.SLOTS)
            and info["cluster_known_nodes"] == str(len(self.nodes))
        )
