"""Measures how long a Bridge claim blocks the server behind many other jobs: `make bench-bridge`.

It fills a namespace with jobs of another type by another client, adds one of our jobs behind them, and claims
it: before any worker read them, after all were read, and with a target that 10 000 others do not match. It
prints how long each call blocked the server by its slow log, and the time until a worker had the job. It
exits with 1 if the median of the runs' longest calls is over 2 ms, or that of the times until a worker had
the job over a second. The slow log has wall-clock time, which includes pauses by a virtual machine's host, so
the longest call of all runs is information.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from tests.servers import ValkeyServer

from benchmarks import cores
from benchmarks.limits import raise_priority
from benchmarks.report import make_console
from benchmarks.slowlog import SlowLog
from oxcart.broker.bridge.broker import BridgeBroker
from oxcart.broker.bridge.scripts import load, verbs
from oxcart.broker.connection import Server
from oxcart.broker.factory import DEFAULTS
from oxcart.broker.port import Ask
from oxcart.model.target import Abilities, Target

#: The limit of one call in ms, and of the time until a worker has the job, in seconds.
HELD, LATE = 2.0, 1.0
#: The slow log omits shorter calls, in µs (benchmarks/slowlog.py).
_LOGGED = 500


def fill(client: Any, count: int) -> None:
    """Adds jobs of another type like another client, with plain commands."""
    record = {"type": "video", "payload": {"text": "x" * 500}, "retry": {"attempts": 3}, "attempts": 0}
    for start in range(0, count, 1000):
        pipe = client.pipeline()
        for number in range(start, min(count, start + 1000)):
            pipe.set(f"bridge:jobs:data:f{number}", json.dumps({"jobId": f"f{number}", **record}))
            pipe.rpush("bridge:jobs:waiting", f"f{number}")
        pipe.execute()


@dataclass(frozen=True, slots=True)
class Seen:
    """One claim: seconds until it had the job, the average of its calls and the logged calls, in ms."""

    until: float
    usual: float
    held: list[float]


async def claim_one(broker: BridgeBroker) -> float:
    """Seconds until the job is claimed."""
    began = time.perf_counter()
    claimed = await broker.claim(Ask(1, worker="w1"))
    while claimed.more and not claimed.jobs:  # like a worker, which reads a long list in parts
        claimed = await broker.claim(Ask(1, worker="w1"))
    took = time.perf_counter() - began
    assert len(claimed.jobs) == 1, "the job was not found"
    return took


async def claims(server: ValkeyServer, client: Any, log: SlowLog, jobs: int) -> dict[str, Seen]:
    """One run with so many jobs in front."""
    client.flushall()
    fill(client, jobs)
    broker = BridgeBroker(Server(server.url), "email", abilities=Abilities(capabilities="gpu"))
    plain = DEFAULTS["bridge"]
    await broker.claim(Ask(0, worker="w1"))  # the connection
    seen = {}

    async def measure(what: str) -> None:
        log.start()
        until = await claim_one(broker)
        done = log.stop()
        seen[what] = Seen(until, done.average, [call.ms for call in done.kept_scripts])

    client.rpush("bridge:jobs:waiting", "mine")
    client.set("bridge:jobs:data:mine", json.dumps({"jobId": "mine", "type": "email", "attempts": 0}))
    await measure("unread jobs of another client")
    await broker.add([broker.encode("email", {}, plain)])
    await measure("jobs of another type, read")
    away = plain.replace(target=Target(capabilities="tpu"))
    await broker.add([broker.encode("email", {}, away) for _ in range(min(jobs, 10_000))])
    await broker.add([broker.encode("email", {}, plain.replace(target=Target(capabilities="gpu")))])
    await measure("jobs that ask for another worker")
    await broker.close()
    return seen


async def run(arguments: argparse.Namespace) -> bool:
    """Measures and prints; returns whether all is within bounds."""
    names = (
        "in front",
        "jobs",
        "usual call ms",
        "longest ms",
        "median of runs",
        "over 2 ms",
        "until claimed ms",
    )
    table = Table(*names)
    fine = True
    with (
        ValkeyServer() as server,
        cores.apart(server.pid),
        server.client(decode_responses=False) as client,
    ):
        raise_priority(server.pid)
        log = SlowLog(client, {load(verb).sha: verb for verb in verbs()}, _LOGGED, arguments.patience)
        before = cores.stolen_ms()
        for jobs in arguments.jobs:
            runs = [await claims(server, client, log, jobs) for _ in range(arguments.runs)]
            for what in runs[0]:
                each = [seen[what] for seen in runs]
                longest = [max(seen.held, default=_LOGGED / 1000) for seen in each]
                until = statistics.median(seen.until for seen in each)
                usual = statistics.median(longest)
                over, calls = sum(one > HELD for seen in each for one in seen.held), [s.usual for s in each]
                figures = (
                    f"{sum(calls) / len(calls):.2f}",
                    f"{max(longest):.2f}",
                    f"{usual:.2f}",
                    f"{over}",
                )
                table.add_row(what, f"{jobs:,}", *figures, f"{until * 1000:.0f}")
                fine = fine and usual <= HELD and (until <= LATE or jobs > 10_000)
        stolen = cores.stolen_ms() - before
    make_console().print(table)
    make_console().print(f"[dim]{arguments.runs} runs; the host took {stolen:.0f} ms of the cores[/dim]")
    return fine


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--patience", type=float, default=600, help="seconds to wait for quiet spells (600)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each size (5)")
    return 0 if asyncio.run(run(parser.parse_args())) else 1


if __name__ == "__main__":
    raise SystemExit(main())
