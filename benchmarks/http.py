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

from benchmarks.http_load import Listener, Load

#: Seconds after the last submission in which listeners may receive the rest.
AFTER = 30.0


async def serve(url: str) -> None:
    """Runs the API and one worker until standard input ends."""
    from oxcart import Queue, Worker
    from oxcart.http.application import app
    from oxcart.http.pauses import shorten_pauses
    from oxcart.http.server import Server

    queue = Queue("bench", url=url, priorities="formal")

    @queue.job
    async def work() -> None:
        return None

    async with queue, Worker(queue, concurrency=100).running(), Server(app([queue])) as server:
        shorten_pauses()  # as `oxcart serve` does
        print(server.url, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """Starts everything, and returns the figures."""
    with ValkeyServer() as store:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.http", "--serve", store.url,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdin is not None
        address = (await process.stdout.readline()).decode().strip().removeprefix("http://")
        host, _, port = address.rpartition(":")
        total = int(asked.rate * asked.seconds)
        ids = [str(uuid.uuid4()) for _ in range(min(asked.listeners, total))]
        of_one = [Listener(address, job_id) for job_id in ids]
        of_all = [Listener(address) for _ in range(asked.all)]
        loop = asyncio.get_running_loop()
        for one in (*of_one, *of_all):
            await loop.create_connection(lambda one=one: one, host, int(port))  # type: ignore[misc]
            await one.ready.wait()
        before = _cpu(process.pid)
        load = Load(host, int(port), asked.rate, total, ids)
        await load.run(asked.connections)
        ends = time.perf_counter() + AFTER
        for one in (*of_one, *of_all):
            expected = total if one in of_all else 1
            while time.perf_counter() < ends and one.ended < expected and not one.lost:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        spent = _cpu(process.pid) - before
        async with httpx.AsyncClient(timeout=60) as client:
            stats = (await client.get(f"http://{address}/api/v1/stats")).json()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        process.stdin.close()
        await process.wait()
    latencies = sorted(load.latencies)
    return {
        "submitted": total,
        "per second": round(total / load.took),
        "p50 ms": round(1000 * statistics.median(latencies), 1),
        "p99 ms": round(1000 * latencies[int(0.99 * (len(latencies) - 1))], 1),
        "max ms": round(1000 * latencies[-1], 1),
        "errors": dict(load.errors),
        "completed": stats["queue"]["completed"],
        "listeners of one job": len(of_one),
        "that saw its end": sum(one.ended >= 1 for one in of_one),
        "listeners of all jobs": len(of_all),
        "that saw every end": sum(one.ended >= total for one in of_all),
        "CPU ms of API and worker per job": round(1000 * spent / total, 3),
        "CPU s of this process": round(usage.ru_utime + usage.ru_stime, 1),
        "load of the machine": os.getloadavg()[0],
    }


def _cpu(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
