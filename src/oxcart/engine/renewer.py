"""The process that keeps a worker's leases alive.

A handler in C code can hold the interpreter for minutes; no thread of the worker can renew anything then.
So renewal is the work of a small process of its own. It learns of claims and ends over a pipe (its
standard input), renews all leases of a queue in one call, and reports refusals and counts on its standard
output. It stops renewing when its worker is gone (the pipe ends), is stopped (as by SIGSTOP), or a job is
past its deadline; a worker that cannot go on must lose its leases.

Run as ``python -m oxcart.engine.renewer``; one JSON message per line each way:
in   {"open": station, "url", "folder", "queue", "prefix"},
     {"hold": station, "leases": [[id, token, starts, deadline]]}, {"drop": station, "ids": [...]}
out  {"ready": true}, {"refused": station, "ids": [...]},
     {"renewed": n, "seconds": s, "station"}, {"failed": n, "error": text, "station"}
Deadlines are wall-clock seconds, or null.

May touch: the server. Imports as little as it can: it must start fast and stay small.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import Any

import msgspec

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.connection import Reconnect, Server
from oxcart.broker.port import Lease
from oxcart.model.errors import BrokerError

_json_out = msgspec.json.Encoder()


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, as by SIGSTOP or a debugger; False where nobody can tell."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False


class Renewer:
    """Holds leases and renews them.

    Args:
        parent: The worker's process id.
        lock_ms: How long a renewed lease lasts.
        every: Seconds between renewals.
        report: Takes each message for the worker.
    """

    def __init__(self, parent: int, lock_ms: int, every: float, report: Any) -> None:
        self._parent = parent
        self._lock_ms = lock_ms
        self._every = every
        self._report = report
        self._brokers: dict[int, BullMQBroker] = {}
        self._held: dict[int, dict[str, tuple[str, int, float | None]]] = {}

    def take(self, message: dict[str, Any]) -> None:
        """Notes what the worker said."""
        if "hold" in message:
            held = self._held[message["hold"]]
            for job_id, token, starts, deadline in message["leases"]:
                held[job_id] = (token, starts, deadline)
        elif "drop" in message:
            held = self._held[message["drop"]]
            for job_id in message["ids"]:
                held.pop(job_id, None)
        elif "open" in message:
            server = Server(message["url"] or None, folder=message["folder"] or None)
            self._brokers[message["open"]] = BullMQBroker(
                server,
                message["queue"],
                prefix=message["prefix"],
                # A renewal that cannot be made now is tried again at the next beat, not queued up.
                reconnect=Reconnect(attempts=2),
            )
            self._held[message["open"]] = {}

    async def beat(self) -> None:
        """Renews everything once."""
        if is_stopped(self._parent):
            return
        now = time.time()
        for station, held in self._held.items():
            leases = [
                Lease(job_id, token, starts)
                for job_id, (token, starts, deadline) in held.items()
                if deadline is None or now < deadline
            ]
            if not leases:
                continue
            started = time.perf_counter()
            try:
                refused = await self._brokers[station].extend(leases, self._lock_ms)
            except (BrokerError, OSError) as error:
                self._report({"failed": len(leases), "error": str(error), "station": station})
                continue
            # A job that ended while the call was under way is refused for that alone.
            refused = [job_id for job_id in refused if job_id in held]
            for job_id in refused:
                held.pop(job_id, None)
            if refused:
                self._report({"refused": station, "ids": refused})
            self._report(
                {
                    "renewed": len(leases) - len(refused),
                    "seconds": time.perf_counter() - started,
                    "station": station,
                }
            )

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Listens and beats until the worker's end of the pipe is closed."""
        beating = asyncio.create_task(self._beat_on())
        try:
            while line := await reader.readline():
                self.take(msgspec.json.decode(line))
        finally:
            beating.cancel()

    async def _beat_on(self) -> None:
        next_beat = time.monotonic() + self._every
        while True:
            await asyncio.sleep(max(0.0, next_beat - time.monotonic()))
            next_beat = max(next_beat + self._every, time.monotonic())
            await self.beat()


async def _main(parent: int, lock_ms: int, every: float) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=64 * 1024 * 1024)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    def report(message: dict[str, Any]) -> None:
        try:
            os.write(1, _json_out.encode(message) + b"\n")
        except OSError:
            os._exit(0)  # nobody listens any more

    report({"ready": True})
    await Renewer(parent, lock_ms, every, report).run(reader)


def main() -> None:
    """Entry point of the process."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        # A signal to the group is the worker's to handle; this process ends when the pipe does.
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))


if __name__ == "__main__":
    main()
