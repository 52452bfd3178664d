"""How long a Bridge claim holds the server, whatever is in front of the job: `make bench-bridge`.

Fills a namespace with jobs of another type that some other client added, puts one job for us behind them,
and claims it: once while nobody has read them, once when all were read, and once with a target that 10 000
others do not fit. Prints how long each call held the server by its own slow log, and how long it took until
a worker had the job. Exits 1 when a call was over 2 ms or a job took longer than a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

from rich.table import Table
from tests.servers import ValkeyServer

from benchmarks import cores
from benchmarks.limits import raise_priority
from benchmarks.report import make_console
from oxcart.broker.bridge.broker import BridgeBroker
from oxcart.broker.bridge.scripts import load
from oxcart.broker.connection import Server
from oxcart.broker.factory import DEFAULTS
from oxcart.broker.port import Ask
from oxcart.model.target import Abilities, Target

#: What one call may take, in ms, and the way of a job to its worker, in seconds.
HELD, LATE = 2.0, 1.0


def fill(client: Any, count: int) -> None:
    """Jobs of another type by another client, with plain commands."""
    record = {"type": "video", "payload": {"text": "x" * 500}, "retry": {"attempts": 3}, "attempts": 0}
    for start in range(0, count, 1000):
        pipe = client.pipeline()
        for number in range(start, min(count, start + 1000)):
            pipe.set(f"bridge:jobs:data:f{number}", json.dumps({"jobId": f"f{number}", **record}))
            pipe.rpush("bridge:jobs:waiting", f"f{number}")
        pipe.execute()


def usual(client: Any) -> float:
    """What a script takes on average since the figures were reset, in ms: a busy machine shows here too."""
    stats = [one for name, one in client.info("commandstats").items() if name.startswith("cmdstat_eval")]
    calls = sum(one["calls"] for one in stats)
    return float(sum(one["usec"] for one in stats) / 1000 / max(1, calls))


def longest(client: Any) -> float:
    """The longest call of a script since the log was emptied, in ms."""
    shas = {load(verb).sha.decode() for verb in ("claim", "finish", "index")}
    entries = client.slowlog_get(100_000)
    held = [
        entry["duration"] / 1000
        for entry in entries
        if b"EVAL" in entry["command"] and any(sha.encode() in entry["command"] for sha in shas)
    ]
    client.slowlog_reset()
    client.config_resetstat()
    return max(held, default=0.0)


async def claim_one(broker: BridgeBroker) -> float:
    """Seconds until the job is claimed."""
    began = time.perf_counter()
    claimed = await broker.claim(Ask(1, worker="w1"))
    while claimed.more and not claimed.jobs:  # as a worker does: a long list is gone through in parts
        claimed = await broker.claim(Ask(1, worker="w1"))
    took = time.perf_counter() - began
    assert len(claimed.jobs) == 1, "the job was not found"
    return took


async def run(arguments: argparse.Namespace) -> bool:
    """Measures and prints; True where all is within bounds."""
    table = Table("in front", "jobs", "usual call ms", "longest call ms", "until claimed ms")
    fine = True
    with (
        ValkeyServer() as server,
        cores.apart(server.pid),
        server.client(decode_responses=False) as client,
    ):
        raise_priority(server.pid)
        client.config_set("slowlog-log-slower-than", 100)
        client.config_set("slowlog-max-len", 100_000)
        for jobs in arguments.jobs:
            client.flushall()
            fill(client, jobs)
            broker = BridgeBroker(Server(server.url), "email", abilities=Abilities(capabilities="gpu"))
            plain = DEFAULTS["bridge"]
            await broker.claim(Ask(0, worker="w1"))  # the connection
            client.rpush("bridge:jobs:waiting", "mine")
            client.set("bridge:jobs:data:mine", json.dumps({"jobId": "mine", "type": "email", "attempts": 0}))
            rows = []
            longest(client)
            rows.append(
                ("unread jobs of another client", await claim_one(broker), usual(client), longest(client))
            )
            await broker.add([broker.encode("email", {}, plain)])
            rows.append(
                ("jobs of another type, read", await claim_one(broker), usual(client), longest(client))
            )
            away = plain.replace(target=Target(capabilities="tpu"))
            await broker.add([broker.encode("email", {}, away) for _ in range(min(jobs, 10_000))])
            await broker.add([broker.encode("email", {}, plain.replace(target=Target(capabilities="gpu")))])
            longest(client)
            rows.append(
                ("jobs that ask for another worker", await claim_one(broker), usual(client), longest(client))
            )
            await broker.close()
            for what, seconds, each, held in rows:
                table.add_row(what, f"{jobs:,}", f"{each:.2f}", f"{held:.2f}", f"{seconds * 1000:.0f}")
                fine = fine and held <= HELD and (seconds <= LATE or jobs > 10_000)
    make_console().print(table)
    return fine


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, nargs="+", default=[10_000, 100_000])
    return 0 if asyncio.run(run(parser.parse_args())) else 1


if __name__ == "__main__":
    raise SystemExit(main())
