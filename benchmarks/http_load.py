"""The client of `benchmarks.http`: submits at a fixed rate and listens to event streams.

It shares the machine with the server that it measures, so it does little: requests are bytes made before
they are due, and answers are searched for their status and length alone.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter, deque
from collections.abc import Sequence

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_ENDED = b"event: job.completed\n"


class Connection(asyncio.Protocol):
    """A connection for submissions, which has one request under way at most.

    Args:
        load: What is submitted.
    """

    transport: asyncio.Transport

    def __init__(self, load: Load) -> None:
        self._load = load
        self._answer = b""
        self._due: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def send(self, due: float, request: bytes) -> None:
        """Sends a request that was due at a time."""
        self._due = due
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Takes a part of the answer."""
        self._answer += data
        head, end, body = self._answer.partition(b"\r\n\r\n")
        length = _LENGTH.search(head) if end else None
        if length is None or len(body) < int(length[1]) or self._due is None:
            return
        due, self._due, self._answer = self._due, None, b""
        self._load.answered(due, head[9:12].decode("latin-1"), self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Counts a request without an answer as an error."""
        if self._due is not None:
            self._load.answered(self._due, "connection lost", None)


class Load:
    """Submissions at a fixed rate. Latency counts from the time at which a request was due.

    Args:
        host: The server.
        port: Its port.
        rate: Submissions per second.
        total: How many.
        ids: The ids of the first jobs; the server makes those of the others.
    """

    def __init__(self, host: str, port: int, rate: float, total: int, ids: Sequence[str]) -> None:
        self._host, self._port, self._rate, self._ids = host, port, rate, ids
        self.total = total
        self.latencies: list[float] = []
        self.errors: Counter[str] = Counter()
        self.took = 0.0
        self._idle: deque[Connection] = deque()
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._done = asyncio.Event()

    async def run(self, connections: int) -> None:
        """Submits all. A request that finds no free connection waits for one."""
        loop = asyncio.get_running_loop()
        made = [
            (await loop.create_connection(lambda: Connection(self), self._host, self._port))[1]
            for _ in range(connections)
        ]
        self._idle.extend(made)
        requests = [self._request(number) for number in range(self.total)]
        started = time.perf_counter() + 0.1
        for number, request in enumerate(requests):
            due = started + number / self._rate
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            self._waiting.append((due, request))
            self._send()
        await self._done.wait()
        self.took = time.perf_counter() - started
        for one in made:
            one.transport.close()

    def answered(self, due: float, status: str, idle: Connection | None) -> None:
        """Takes an answer, and the connection that is free again."""
        self.latencies.append(time.perf_counter() - due)
        if status != "201":
            self.errors[status] += 1
        if len(self.latencies) == self.total:
            self._done.set()
        if idle is not None:
            self._idle.append(idle)
            self._send()

    def _send(self) -> None:
        while self._waiting and self._idle:
            self._idle.popleft().send(*self._waiting.popleft())

    def _request(self, number: int) -> bytes:
        job: dict[str, object] = {"type": "work", "payload": {}}
        if number < len(self._ids):
            job["id"] = self._ids[number]
        body = json.dumps(job).encode()
        head = (
            f"POST /api/v1/jobs HTTP/1.1\r\nhost: {self._host}:{self._port}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


class Listener(asyncio.Protocol):
    """One event stream, of one job or of all; counts the ends of jobs in it.

    Args:
        address: The server's host and port.
        job_id: The job; empty for all.

    Attributes:
        ended: Ends of jobs that it has received.
        lost: Whether the server ended the stream.
        ready: Set with the first event, which says that the stream is connected.
    """

    def __init__(self, address: str, job_id: str = "") -> None:
        self._address = address
        self._path = f"/api/v1/events?job_id={job_id}" if job_id else "/api/v1/events"
        self._rest = b""
        self.ended = 0
        self.lost = False
        self.ready = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asks for the events."""
        assert isinstance(transport, asyncio.Transport)
        transport.write(f"GET {self._path} HTTP/1.1\r\nhost: {self._address}\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        """Counts the ends; a name that the end of a block cuts is counted with the next block."""
        block = self._rest + data
        self.ended += block.count(_ENDED)
        self._rest = b"" if block.endswith(_ENDED) else block[1 - len(_ENDED) :]
        if not self.ready.is_set() and b"event: connected" in block:
            self.ready.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Notes that the stream has ended."""
        self.lost = True
        self.ready.set()
