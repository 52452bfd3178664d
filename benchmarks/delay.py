"""A slow link: a TCP proxy that delivers every byte a fixed time after it came, in each direction.

    async with SlowLink(server.port, delay=0.010) as link:
        connect_to(link.port)

The proxy is a process of its own with one loop over `select`, whose timeouts are finer than those of epoll in
Python. It copies the bytes of one read, so its cost is per read, not per command; `busy()` returns its share
of a core, which shows that it was not the bottleneck.

    python -m benchmarks.delay <server port> <delay in seconds>
"""

from __future__ import annotations

import asyncio
import select
import socket
import sys
import time
from collections import deque
from typing import Self

from benchmarks.measured import process_cpu
from benchmarks.systems import ROOT

CHUNK = 1 << 18


class SlowLink:
    """The proxy's process, for the block."""

    def __init__(self, server_port: int, delay: float) -> None:
        self._server_port = server_port
        self._delay = delay
        self._process: asyncio.subprocess.Process | None = None
        self.port = 0

    def cpu(self) -> float:
        """Seconds of CPU that the proxy has used."""
        assert self._process is not None
        return process_cpu(self._process.pid)

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.delay", str(self._server_port), str(self._delay)),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self.port = int(await self._process.stdout.readline())
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


class _Way:
    """One direction of a connection: bytes on their way, each with the time of its arrival."""

    __slots__ = ("ended", "flight", "source", "target")

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source = source
        self.target = target
        self.flight: deque[tuple[float, memoryview]] = deque()
        self.ended = False

    def take(self, due: float) -> None:
        """Reads the available bytes; an end of the stream is delayed like bytes."""
        try:
            data = self.source.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.ended = not data
        self.flight.append((due, memoryview(data)))

    def deliver(self, now: float) -> bool:
        """Writes what has arrived; False when the connection is over."""
        flight = self.flight
        while flight and flight[0][0] <= now:
            due, data = flight[0]
            if not data:
                return False
            try:
                sent = self.target.send(data)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if sent < len(data):
                flight[0] = (due, data[sent:])
                return True
            flight.popleft()
        return True


class _Proxy:
    def __init__(self, server_port: int, delay: float) -> None:
        self._server_port = server_port
        self._delay = delay
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._listener.setblocking(False)
        self._ways: dict[socket.socket, _Way] = {}
        self.port = int(self._listener.getsockname()[1])

    def run(self) -> None:
        parent = sys.stdin  # ends when the parent does
        while True:
            now = time.monotonic()
            dues = [way.flight[0][0] for way in self._ways.values() if way.flight]
            wait = max(0.0, min(dues) - now) if dues else None
            stuck = [way.target for way in self._ways.values() if way.flight and way.flight[0][0] <= now]
            if stuck:
                wait = min((due - now for due in dues if due > now), default=None)
            sources = [way.source for way in self._ways.values() if not way.ended]
            readable, _, _ = select.select([self._listener, parent, *sources], stuck, [], wait)
            now = time.monotonic()
            if parent in readable:
                return
            if self._listener in readable:
                self._accept()
            for source in readable:
                if isinstance(source, socket.socket) and source is not self._listener:
                    self._ways[source].take(now + self._delay)
            for way in list(self._ways.values()):
                if way.flight and way.flight[0][0] <= now and not way.deliver(now):
                    self._close(way)

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        far = socket.create_connection(("127.0.0.1", self._server_port))
        for one in (near, far):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.setblocking(False)
        self._ways[near] = _Way(near, far)
        self._ways[far] = _Way(far, near)

    def _close(self, way: _Way) -> None:
        for one in (way.source, way.target):
            if self._ways.pop(one, None) is not None:
                one.close()


if __name__ == "__main__":
    proxy = _Proxy(int(sys.argv[1]), float(sys.argv[2]))
    print(proxy.port, flush=True)
    proxy.run()
