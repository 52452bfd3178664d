"""One run: start server, proxies, workers and producers, let the nemesis loose, repair all, check."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.proxy import Proxy
from tests.checker import lake
from tests.checker.clock import Clock
from tests.checker.crews import Crews
from tests.checker.disk import mounted
from tests.checker.final import read_final, unended
from tests.checker.invariants import History, Violation, check
from tests.checker.nemesis import Fault, Nemesis
from tests.checker.pair import Pair
from tests.checker.plan import WIRES, make_plan
from tests.checker.producers import Producers
from tests.checker.record import Record
from tests.servers import ValkeyServer

#: Seconds without progress after which open jobs count as forgotten. Longer than any wait of a healthy system
#: on a busy machine: leases of two seconds, backoffs of 20 ms, reconnects within 30 s.
PATIENCE = 90.0
#: Events that a queue keeps, more than a run makes.
EVENTS = 1_000_000


@dataclass
class Result:
    """The result of a run.

    Attributes:
        seed: Its seed.
        peers: Which peers took part.
        seconds: How long it took.
        faults: The faults that were caused.
        told: How often clients were told what.
        runs: How many attempts each side began.
        ends: How many jobs of each queue are in each state at the end.
        stalls: How many jobs were recovered.
        dropped: How many replies were dropped.
        violations: What was broken.
        has_lake: Whether the pipeline took part.
    """

    seed: int
    peers: tuple[str, ...]
    seconds: float
    faults: list[Fault]
    told: Counter[str] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    stalls: int = 0
    dropped: int = 0
    violations: list[Violation] = field(default_factory=list)
    has_lake: bool = False

    @property
    def broken(self) -> frozenset[str]:
        """The invariants that do not hold."""
        return frozenset(one.invariant for one in self.violations)


async def run(
    folder: Path,
    seed: int,
    seconds: float,
    faults: Sequence[Fault],
    peers: tuple[str, ...],
    patience: float = PATIENCE,
    only: str = "",
    has_lake: bool = False,
) -> Result:
    """Does one run in a folder, which holds records and logs afterwards.

    Args:
        folder: The folder.
        seed: Determines the load.
        seconds: During which jobs are added.
        faults: What the nemesis does.
        peers: Which of Node's take part.
        patience: Seconds to wait for progress at the end.
        only: The only queue and kind of jobs; all by default.
        has_lake: Whether the pipeline takes part.
    """
    plan = make_plan(seed, seconds, peers, only)
    record = Record(folder / "record")
    began = time.monotonic()
    clock = Clock(folder)
    options: dict[str, Any] = {"appendonly": True, "appendfsync": "always", "binary": clock.program}
    server = ValkeyServer(start=False, **options)
    has_replica = any(fault.kind == "failover" for fault in faults)
    pair = Pair(server, options if has_replica else None)
    with contextlib.ExitStack() as stack:
        mounts = {one.folder: stack.enter_context(mounted(one.folder)) for one in pair.servers}
        disks = {folder: disk for folder, disk in mounts.items() if disk is not None}
        stack.enter_context(pair)
        async with Proxy(server.port) as ours, Proxy(server.port) as theirs:
            with server.client() as client:
                for queue in WIRES:
                    client.hset(f"bull:{queue}:meta", "opts.maxLenEvents", EVENTS)
            crews = Crews(plan, folder, record.path, ours.url, theirs.url, has_tailer=has_lake)
            producers = Producers(plan, record, ours.url, theirs.url, is_replicated=has_replica)
            async with crews.working():
                async with producers.ready():
                    nemesis = Nemesis(pair, {"ours": ours, "theirs": theirs}, crews, record, clock, disks)
                    async with asyncio.TaskGroup() as group:
                        group.create_task(producers.produce())
                        group.create_task(nemesis.run(faults))
                    is_quiet = await _quiet(pair.master, patience)
                died = crews.died()
            with pair.master.client() as client:
                final = read_final(client)
            if has_lake:
                await lake.build(folder, pair.master.url, final)
            dropped = ours.cuts.total() + theirs.cuts.total()
    lines = record.lines()
    record.close()
    history = History(plan, lines, final, is_quiet)
    violations = [Violation("alive", f"{name} ended by itself") for name in died] + check(history)
    result = Result(
        seed,
        peers,
        time.monotonic() - began,
        list(faults),
        Counter(line.what for line in lines),
        Counter(line.side for line in lines if line.what == "began"),
        Counter(f"{key[0]} {place}" for key, job in final.jobs.items() for place in job.places),
        sum(one.name == "stalled" for events in final.events.values() for one in events),
        dropped,
        violations,
        has_lake,
    )
    if violations:
        text = "\n".join([*map(str, violations), *map(str, faults), crews.logs()])
        (folder / "violations").write_text(text)
    return result


async def _quiet(server: ValkeyServer, patience: float) -> bool:
    """Waits until all jobs have ended; False if their number falls no further for so many seconds."""
    lowest, since = sys.maxsize, time.monotonic()
    with server.client() as client:
        while left := unended(client):
            if left < lowest:
                lowest, since = left, time.monotonic()
            if time.monotonic() - since > patience:
                return False
            await asyncio.sleep(0.1)
    return True
