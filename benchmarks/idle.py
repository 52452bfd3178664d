"""Measures what idle queues and workers cost a server: `make bench-idle`.

All workers of a row serve all queues of it, in a process of their own. After a while the benchmark counts for
some seconds: commands that the server executed, those of scripts included, calls of scripts, bytes in both
directions, connections, and the processor time of the server and of the process with the workers. Counts need
no quiet machine.

A row that ends in ``a`` has workers with abilities, which look for lanes as well. The others have one queue:
``p`` with so many partitions on one server, ``c`` with so many on a cluster of three masters, ``l`` with so
many lanes, each with a job that is due in a day.

    python -m benchmarks.idle [--rows 1x1 1000x10 10000x1 100x10a] [--seconds 20] [--check]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.servers import ValkeyCluster, ValkeyServer

ROOT = Path(__file__).parents[1]
LONGEST_START = 120.0
ROWS = (
    "1x1",
    "1x10",
    "100x10",
    "1000x10",
    "10000x1",
    "1x10a",
    "100x10a",
    "1000x10a",
    "16x10p",
    "16x10c",
    "16x10l",
)
KINDS = {
    "": "",
    "a": " with abilities",
    "p": ", partitions",
    "c": ", partitions on a cluster",
    "l": ", lanes",
}
#: Most commands a second of a row. A fleet over them has lost its election, or asks queue by queue.
BOUNDS = {"1x1": 40, "1x10": 400, "100x10": 600, "1000x10": 1_500, "10000x1": 3_000}
BOUNDS |= {"1x10a": 500, "100x10a": 600, "1000x10a": 1_500, "16x10p": 1_100, "16x10c": 1_100, "16x10l": 900}


class Row(NamedTuple):
    """What a fleet costs while it is idle.

    Attributes:
        queues: How many queues there are.
        workers: How many workers serve each of them.
        commands: Commands a second, those of scripts included.
        calls: Calls of scripts a second.
        received: Bytes a second that the server receives.
        sent: Bytes a second that it sends.
        connections: Connections of the workers.
        server_ms: Processor time of the server, ms a second.
        workers_ms: Processor time of the workers, ms a second.
        memory_mb: Resident memory of the process with all workers, MB.
        start_s: Seconds until all workers had started and were idle.
    """

    queues: int
    workers: str
    commands: float
    calls: float
    received: float
    sent: float
    connections: int
    server_ms: float
    workers_ms: float
    memory_mb: float
    start_s: float

    @property
    def line(self) -> str:
        """The row of the table."""
        return (
            f"| {self.queues:,} × {self.workers} | {self.commands:,.0f} | {self.calls:,.0f} "
            f"| {self.received / 1000:,.1f} | {self.sent / 1000:,.1f} | {self.connections:,} "
            f"| {self.server_ms:,.1f} | {self.workers_ms:,.0f} | {self.memory_mb:,.0f} "
            f"| {self.start_s:,.1f} |"
        )


HEAD = (
    "| queues × workers | commands/s | scripts/s | kB/s in | kB/s out | connections | server ms/s "
    "| workers ms/s | MB | start s |\n|---|---|---|---|---|---|---|---|---|---|"
)


async def serve(url: str, queues: int, workers: int, kind: str) -> None:
    """Runs the workers until its input ends."""
    from oxcart import Abilities, Queue, Worker

    async def nothing() -> None:
        pass

    logging.disable(logging.CRITICAL)
    crew = []
    if kind == "l":
        async with Queue("q", url=url) as queue:
            for number in range(queues):
                await queue.add("job", target={"capabilities": f"c{number}"}, delay="1d")
    for _ in range(workers):
        if kind in ("p", "c"):
            served = [Queue("q", url=url, partitions=queues)]
        elif kind == "l":
            served = [Queue("q", url=url)]
        else:
            served = [Queue(f"q{number:05}", url=url) for number in range(queues)]
        for queue in served:
            queue.fallback(nothing)
        able = {"a": ["gpu"], "l": [f"c{number}" for number in range(queues)]}.get(kind)
        abilities = None if able is None else Abilities(capabilities=tuple(able))
        crew.append(Worker(*served, concurrency=10, abilities=abilities))
    running = [asyncio.create_task(worker.run()) for worker in crew]
    for worker in crew:
        await worker.started.wait()
    print("started", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for worker in crew:
        worker.stop()
    await asyncio.gather(*running)


def measure(queues: int, workers: int, seconds: float, settle: float, kind: str = "") -> Row:
    """Runs one row."""
    with ValkeyCluster() if kind == "c" else ValkeyServer(maxclients=60000) as server:
        nodes = server.nodes if isinstance(server, ValkeyCluster) else [server]
        clients = [node.client() for node in nodes]
        at_first = _connections(clients)
        began = time.monotonic()
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmarks.idle", "--serve"),
                *(server.url, str(queues), str(workers), kind),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == b"started\n"
            _until_quiet(clients)
            start = time.monotonic() - began
            time.sleep(settle)
            before, at = _facts(clients, process.pid), time.monotonic()
            time.sleep(seconds)
            after, took = _facts(clients, process.pid), time.monotonic() - at
            each = [(new - old) / took for old, new in zip(before, after, strict=True)]
            commands, scripts, received, sent, server_ms, workers_ms = each
            connections = _connections(clients) - at_first
            memory = _memory(process.pid)
            return Row(
                *(
                    queues,
                    f"{workers}{KINDS[kind]}",
                    commands,
                    scripts,
                    received,
                    sent,
                ),
                *(connections, server_ms, workers_ms, memory, start),
            )
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(120)


def _connections(clients: list[Any]) -> int:
    return sum(int(one.info("clients")["connected_clients"]) for one in clients)


def _until_quiet(clients: list[Any]) -> None:
    """Waits until the first claims of all queues are over: five seconds with few scripts."""
    quiet, last, end = 0, _facts(clients, 1)[1], time.monotonic() + LONGEST_START
    while quiet < 5 and time.monotonic() < end:
        time.sleep(1)
        now = _facts(clients, 1)[1]
        quiet, last = quiet + 1 if now - last < 100 else 0, now


def _facts(clients: list[Any], pid: int) -> list[float]:
    found = [_of_server(client) for client in clients]
    commands, scripts, received, sent, server = map(sum, zip(*found, strict=True))
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    spent = (int(fields[11]) + int(fields[12])) * 10.0
    return [commands, scripts, received, sent, server, spent]


def _of_server(client: Any) -> tuple[float, float, float, float, float]:
    stats, whole = client.info("commandstats"), client.info()
    return (
        sum(one["calls"] for name, one in stats.items() if name != "cmdstat_info"),
        stats.get("cmdstat_evalsha", {"calls": 0})["calls"],
        whole["total_net_input_bytes"],
        whole["total_net_output_bytes"],
        (whole["used_cpu_user"] + whole["used_cpu_sys"]) * 1000,
    )


def _memory(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1000
    return 0.0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", default=list(ROWS), help="QUEUESxWORKERS")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--settle", type=float, default=40, help="seconds before it counts")
    parser.add_argument("--check", action="store_true", help="exit 1 when a row is over its bound")
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        url, queues, workers, kind = args.serve
        asyncio.run(serve(url, int(queues), int(workers), kind))
        return 0
    print(HEAD, flush=True)
    over = []
    for row in args.rows:
        kind = row[-1] if row[-1] in KINDS else ""
        queues, workers = map(int, row.removesuffix(kind).split("x"))
        found = measure(queues, workers, args.seconds, args.settle, kind)
        print(found.line, flush=True)
        if found.commands > BOUNDS.get(row, float("inf")):
            over.append(f"{row}: {found.commands:,.0f} commands/s, at most {BOUNDS[row]:,}")
    print("\n".join(over))
    return 1 if args.check and over else 0


if __name__ == "__main__":
    sys.exit(main())
