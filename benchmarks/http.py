"""Measures the HTTP API under load: submissions per second with their latency, beside listeners and a worker.

python -m benchmarks.http [--rate 1000] [--seconds 60] [--listeners 1000] [--all 2] [--connections 64]

Listeners follow one job each, as clients that wait for a job do; ``--all`` listeners follow every job.
Three processes: the store, the API together with one worker (in-process, so adds of one turn share a call),
and this one, which submits at a fixed rate and listens. Latency counts from the time at which a request was
due, so a slow answer delays none of the others' clocks.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import sys
import time
import uuid
from typing import Any

import httpx
from tests.servers import ValkeyServer

#: Seconds after the last submission in which listeners may receive the rest.
AFTER = 30.0


async def serve(url: str) -> None:
    """Runs the API and one worker until standard input ends."""
    from oxcart import Queue, Worker
    from oxcart.http.application import app
    from oxcart.http.server import Server

    queue = Queue("bench", url=url, priorities="formal")

    @queue.job
    async def work() -> None:
        return None

    async with queue, Worker(queue, concurrency=100).running(), Server(app([queue])) as server:
        print(server.url, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


class Listener:
    """One event stream, of one job or of all; counts the ends of jobs in it."""

    def __init__(self, host: str, port: int, job_id: str = "") -> None:
        self.host, self.port = host, port
        self.path = f"/api/v1/events?job_id={job_id}" if job_id else "/api/v1/events"
        self.ended = 0
        self.lost: str | None = None
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """Listens until it is cancelled. Lines are counted, not parsed: the listeners share this process."""
        try:
            reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 20)
            request = f"GET {self.path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n\r\n"
            writer.write(request.encode())
            rest = b""
            while data := await reader.read(1 << 16):
                self.ready.set()
                whole = rest + data
                self.ended += whole.count(b"event: job.completed")
                # A name that is cut by the end of the block is counted with the next one.
                rest = whole[-19:] if b"event: job.completed" not in whole[-38:] else b""
            self.lost = "the server ended the stream"
        except OSError as error:
            self.lost = str(error)
        finally:
            self.ready.set()


async def submit(
    client: httpx.AsyncClient, rate: int, seconds: float, connections: int, ids: list[str]
) -> dict[str, Any]:
    """Submits at a fixed rate; returns latencies and errors. The first jobs have the ids of the listeners."""
    total = int(rate * seconds)
    numbers = iter(range(total))
    started = time.perf_counter() + 0.5
    latencies: list[float] = []
    errors: dict[str, int] = {}

    async def one() -> None:
        for number in numbers:
            due = started + number / rate
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            try:
                body: dict[str, Any] = {"type": "work", "payload": {}}
                if number < len(ids):
                    body["id"] = ids[number]
                answer = await client.post("/api/v1/jobs", json=body)
                if answer.status_code != 201:
                    raise OSError(f"status {answer.status_code}")
            except (httpx.HTTPError, OSError) as error:
                errors[repr(error)] = errors.get(repr(error), 0) + 1
            latencies.append(time.perf_counter() - due)

    await asyncio.gather(*(one() for _ in range(connections)))
    took = time.perf_counter() - started
    return {"sent": total, "took": took, "latencies": latencies, "errors": errors}


async def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """Starts everything, and returns the figures."""
    with ValkeyServer() as store:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.http", "--serve", store.url,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdin is not None
        url = (await process.stdout.readline()).decode().strip()
        port = int(url.rpartition(":")[2])
        ids = [str(uuid.uuid4()) for _ in range(min(asked.listeners, int(asked.rate * asked.seconds)))]
        everything = [Listener("127.0.0.1", port) for _ in range(asked.all)]
        listeners = [*(Listener("127.0.0.1", port, job_id) for job_id in ids), *everything]
        tasks = []
        for listener in listeners:
            tasks.append(asyncio.create_task(listener.run()))
            if len(tasks) % 50 == 0:
                await listener.ready.wait()
        await asyncio.gather(*(listener.ready.wait() for listener in listeners))
        limits = httpx.Limits(max_connections=asked.connections, max_keepalive_connections=asked.connections)
        async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as client:
            done = await submit(client, asked.rate, asked.seconds, asked.connections, ids)
            ends = time.perf_counter() + AFTER
            for listener in listeners:
                expected = done["sent"] if listener in everything else 1
                while (  # noqa: ASYNC110
                    time.perf_counter() < ends and listener.ended < expected and listener.lost is None
                ):
                    await asyncio.sleep(0.1)
            stats = (await client.get("/api/v1/stats")).json()["queue"]
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu = _cpu(process.pid)
        for task in tasks:
            task.cancel()
        process.stdin.close()
        await process.wait()
    latencies = sorted(done["latencies"])
    return {
        "submitted": done["sent"],
        "per second": round(done["sent"] / done["took"]),
        "p50 ms": round(1000 * statistics.median(latencies), 1),
        "p99 ms": round(1000 * latencies[int(0.99 * (len(latencies) - 1))], 1),
        "max ms": round(1000 * latencies[-1], 1),
        "errors": done["errors"],
        "completed": stats["completed"],
        "listeners of one job": len(ids),
        "that saw its end": sum(one.ended >= 1 for one in listeners if one not in everything),
        "listeners of all jobs": len(everything),
        "that saw every end": sum(one.ended >= done["sent"] for one in everything),
        "listeners lost": sum(one.lost is not None for one in listeners),
        "CPU s of API and worker": cpu,
        "CPU s of this process": round(usage.ru_utime + usage.ru_stime, 1),
        "load of the machine": os.getloadavg()[0],
    }


def _cpu(pid: int) -> float | None:
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return round((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), 1)


def main() -> None:
    """Prints the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--listeners", type=int, default=1000)
    parser.add_argument("--all", type=int, default=2)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--serve", metavar="URL", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        asyncio.run(serve(asked.serve))
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 8192), hard), hard))
    print(json.dumps(asyncio.run(measure(asked)), indent=2))


if __name__ == "__main__":
    main()
