"""What one round trip costs: redis-py's asyncio client against our `Link`, on one private Valkey.

    python -m benchmarks.link [--calls 5000] [--rounds 5]

`alone` awaits each call before the next; `together` has 50 calls of one loop turn under way. The script of
`evalsha` does nothing with arguments of the size of a small batch, so that packing and parsing are in the
figure and the server's work is not.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import redis.asyncio
from rich.table import Table
from tests.servers import ValkeyServer

from benchmarks.peers.role import percentile
from benchmarks.report import make_console
from oxcart.broker.connection import Server

TOGETHER = 50
SCRIPT = "return ARGV"
ARGUMENTS = ["x" * 100] * 10

Call = Callable[[], Awaitable[object]]


@dataclass
class Cost:
    """One round: latencies in ms, CPU of this process in µs per call."""

    p50: float
    p99: float
    cpu: float


async def alone(call: Call, calls: int) -> Cost:
    spent = []
    cpu = time.process_time()
    for _ in range(calls):
        before = time.perf_counter()
        await call()
        spent.append(time.perf_counter() - before)
    cpu = time.process_time() - cpu
    return Cost(percentile(spent, 0.5) * 1e3, percentile(spent, 0.99) * 1e3, cpu / calls * 1e6)


async def together(call: Call, calls: int) -> Cost:
    spent = []
    cpu = time.process_time()
    for _ in range(calls // TOGETHER):
        before = time.perf_counter()
        await asyncio.gather(*(call() for _ in range(TOGETHER)))
        spent.append(time.perf_counter() - before)
    cpu = time.process_time() - cpu
    return Cost(percentile(spent, 0.5) * 1e3, percentile(spent, 0.99) * 1e3, cpu / calls * 1e6)


async def run(calls: int, rounds: int) -> None:
    console = make_console()
    with ValkeyServer() as server:
        client: Any = redis.asyncio.Redis(host="127.0.0.1", port=server.port)
        link = Server(server.url).link()
        sha = await client.script_load(SCRIPT)
        kinds: dict[str, dict[str, Call]] = {
            "ping": {
                "redis-py": lambda: client.execute_command("PING"),
                "link": lambda: link.call("PING"),
            },
            "evalsha": {
                "redis-py": lambda: client.execute_command("EVALSHA", sha, 1, "k", *ARGUMENTS),
                "link": lambda: link.call("EVALSHA", sha, 1, "k", *ARGUMENTS),
            },
        }
        found: dict[tuple[str, str, str], list[Cost]] = {}
        for kind, callers in kinds.items():
            for way in (alone, together):
                for call in callers.values():
                    await way(call, max(TOGETHER, calls // 10))
                for _ in range(rounds):
                    for name, call in callers.items():
                        cost = await way(call, max(TOGETHER, calls))
                        found.setdefault((kind, way.__name__, name), []).append(cost)
        await client.aclose()
        await link.close()
    table = Table(title=f"round trips, medians of {rounds} rounds of {calls} calls", title_justify="left")
    for column in ("call", "way", "client", "p50 ms", "p99 ms", "client CPU µs/call"):
        table.add_column(column, justify="right" if "s" in column.split()[-1] else "left")
    for (kind, way_name, name), costs in found.items():
        figures = [
            statistics.median(getattr(cost, field) for cost in costs) for field in ("p50", "p99", "cpu")
        ]
        table.add_row(kind, way_name, name, f"{figures[0]:.3f}", f"{figures[1]:.3f}", f"{figures[2]:.1f}")
    console.print(table)
    console.print(f"[dim]together: p50 and p99 are those of {TOGETHER} calls under way at once[/dim]")


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.link", description="redis-py's client against our link")
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    asyncio.run(run(arguments.calls, arguments.rounds))


if __name__ == "__main__":
    main()
