"""Measures how long calls block the server: `make bench-limits`, or `python -m benchmarks.limits --help`.

It checks the four limits of the specification (reading a job, taking its lock, emitting an event, a stalled
check over 10 000 active jobs), how long scripts block the server by its slow log, and that two worker
processes are not slower than one. It exits with 1 if a limit is exceeded.

The slow log has wall-clock time, not CPU time. If the system allows it, the server runs at a raised priority,
so that other processes do not count. Pauses by a virtual machine's host still count, so limits apply to what
calls of each script need: the highest median of 50 consecutive calls among the logged ones. The longest call
is printed, as information. An idle loop of the length of a usual call is timed in the
same way: its longest call, and its calls over the limit, show the pauses of the machine. The CPU time that
the host took meanwhile ("stolen") is printed if the host reports it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import redis
from rich.console import Console
from rich.table import Table
from tests.servers import ValkeyServer

import oxcart
from benchmarks import cores
from benchmarks.peers import role
from benchmarks.peers.oxcart import look, make_queue
from benchmarks.report import make_console
from benchmarks.slowlog import SlowLog, needed
from benchmarks.systems import SYSTEMS
from benchmarks.workloads import Bench, Sizes
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.scripts import load, verbs
from oxcart.broker.clock import now_ms
from oxcart.broker.connection import Server
from oxcart.broker.port import Ask, Claimed, Lease
from oxcart.model.options import JobOptions

#: The specification's limits, in ms.
READ, LOCK, EVENT, STALLED, HELD = 10.0, 5.0, 5.0, 100.0, 5.0
#: The least speed of two processes against one.
TWO = 1.0
#: How often every script is compiled.
_COMPILED = 5

#: The slow log omits shorter calls, in µs (benchmarks/slowlog.py).
_LOGGED = 500

#: The parts: first uses of scripts, the four limits, jobs due at once, jobs active elsewhere and here, and
#: two processes.
PARTS = ("first", "four", "due", "elsewhere", "active", "two")

LEASE_MS = 600_000
_CLAIM = 50


class Checks:
    """Collects the results of the checks."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._table = Table(title="Limits", title_justify="left")
        for column in ("what", "found", "limit", "kept"):
            self._table.add_column(column, justify="left" if column == "what" else "right")
        self.kept = True

    def add(self, what: str, found: str, limit: str, kept: bool) -> None:
        self._table.add_row(what, found, limit, "[green]yes[/green]" if kept else "[red]NO[/red]")
        self.kept = self.kept and kept

    def note(self, what: str, found: str) -> None:
        self._table.add_row(what, found, "", "")

    def ms(self, what: str, found: float, limit: float) -> None:
        self.add(what, f"{found:.2f} ms", f"{limit:g} ms", found <= limit)

    def print(self) -> None:
        self._console.print(self._table)


# -- the four limits


async def four_limits(server: ValkeyServer, checks: Checks, calls: int, active: int) -> None:
    """Round trips as a client sees them, and a whole stalled check."""
    client = server.client()
    client.flushall()
    broker = open_broker(server)
    await add_jobs(broker, calls + active)
    first = client.lindex(broker.keys.wait(), -1)
    hgetall = await times(calls, lambda: broker.caller.command("HGETALL", broker.keys.job(str(first))))
    checks.ms(f"HGETALL of a job, p99 of {calls}", role.percentile(hgetall, 0.99), READ)
    ask = Ask(count=1, lock_ms=LEASE_MS, worker="limits")
    lock = await times(calls, lambda: broker.claim(ask))
    checks.ms(f"lock (claim of one job), p99 of {calls}", role.percentile(lock, 0.99), LOCK)
    event = ("XADD", broker.keys.events(), "MAXLEN", "~", 10_000, "*", "event", "progress", "data", "1")
    emit = await times(calls, lambda: broker.caller.command(*event))
    checks.ms(f"XADD of an event, p99 of {calls}", role.percentile(emit, 0.99), EVENT)
    await claim_jobs(broker, active - calls)
    spent = []
    for _ in range(5):
        client.delete(broker.keys.stalled_check())
        before = time.perf_counter()
        answer = await broker.recover(interval_ms=1000)
        spent.append((time.perf_counter() - before) * 1000)
        if not answer.ran or answer.ids:
            raise SystemExit(f"a stalled check that should find nothing: {answer}")
    checks.ms(f"stalled check, {active} active jobs, median of 5", statistics.median(spent), STALLED)
    await broker.close()


async def times(calls: int, call: Callable[[], Awaitable[object]]) -> list[float]:
    """Milliseconds of each call, after some to warm up."""
    spent = []
    for _ in range(calls):
        before = time.perf_counter()
        await call()
        spent.append((time.perf_counter() - before) * 1000)
    return spent


# -- how long a script blocks the server


class Held:
    """How long scripts blocked the server, by its slow log."""

    def __init__(self, client: redis.Redis, console: Console, checks: Checks, patience: float) -> None:
        self._client: Any = client
        self._console = console
        self._checks = checks
        self.log = SlowLog(client, {load(verb).sha: verb for verb in verbs()}, _LOGGED, patience)

    async def first_use(self) -> None:
        """Sends the text of every script, which the server compiles, and checks how long that usually takes.

        Unloads them again: the pauses of Lua's collector count as time of a call and grow with the number of
        compiled scripts, and no worker uses every script.
        """
        spent: dict[str, list[float]] = {}
        for _ in range(_COMPILED):
            for verb in verbs():
                self.log.start()
                if self._client.script_load(load(verb).text) != load(verb).sha.decode():
                    raise SystemExit(f"the server knows script {verb} by another name than we do")
                took = [call.ms for call in self.log.stop().calls if call.name == "SCRIPT"]
                spent.setdefault(verb, []).append(max(took, default=_LOGGED / 1000))
            self._client.script_flush()
        usual = {verb: statistics.median(each) for verb, each in spent.items()}
        worst = max(usual, key=lambda verb: usual[verb])
        what = f"first use of a script, the worst of {len(usual)} medians of {_COMPILED} ({worst})"
        self._checks.ms(what, usual[worst], HELD)

    def idle_loop(self, calls: int) -> None:
        """Returns the longest time of a script that does nothing, on this machine now."""
        before = cores.stolen_ms()
        took = sorted(self.log.idle(calls))
        stolen = cores.stolen_ms() - before
        usual, over = took[calls // 2], sum(one > HELD for one in took)
        what = f"the machine: a loop of {usual:.1f} ms, longest of {calls:,} ({over} over {HELD:g} ms; "
        what += f"{stolen:.0f} ms stolen)"
        self._checks.note(what, f"{took[-1]:.2f} ms")

    async def check(self, scenario: str, runs: int, run: Callable[[], Awaitable[None]]) -> None:
        """Runs a scenario several times, prints how long each script took, and checks what calls need."""
        found = []
        made: Counter[str] = Counter()
        before = cores.stolen_ms()
        for _ in range(runs):
            await run()
            found.append(self.log.stop())
            made += self.log.made
        stolen = cores.stolen_ms() - before
        scripts = sum(seen.scripts for seen in found)
        average = sum(seen.average for seen in found) / runs
        title = f"{scenario}, {runs} runs: {scripts:,} scripts of {average:.2f} ms on average"
        table = Table(title=f"{title} ({stolen:.0f} ms stolen)", title_justify="left")
        table.add_column("script")
        for column in (f"over {_LOGGED / 1000:g} ms", f"over {HELD:g} ms", "needs ms", "longest ms"):
            table.add_column(column, justify="right")
        logged = [call for seen in found for call in seen.kept_scripts]
        needs = needed(logged, made, _LOGGED / 1000)
        for verb in sorted({call.name for call in logged}):
            every = [call.ms for call in logged if call.name == verb]
            over = sum(one > HELD for one in every)
            table.add_row(verb, f"{len(every):,}", f"{over}", f"{needs[verb]:.2f}", f"{max(every):.2f}")
        self._console.print(table)
        slowest = max(needs, key=lambda verb: needs[verb], default="none was logged")
        self._checks.ms(f"{scenario}: what calls need ({slowest})", needs.get(slowest, _LOGGED / 1000), HELD)


async def due_at_once(server: ValkeyServer, log: SlowLog, delayed: int) -> None:
    """All delayed jobs are due when the worker starts."""
    server.client().flushall()
    hour = 3_600_000
    past = open_broker(server, clock=lambda: now_ms() - hour)
    await add_jobs(past, delayed, JobOptions.build(delay=hour / 1000 - 60))
    await past.close()
    log.start()
    await drain(server, log, delayed, concurrency=100)


async def beside_active(server: ValkeyServer, log: SlowLog, active: int, jobs: int) -> None:
    """Runs a worker on a queue with many active jobs of others: renewals and stalled checks."""
    client = server.client()
    client.flushall()
    broker = open_broker(server)
    broker.caller.on_script = log.scripted
    await add_jobs(broker, active)
    held = await claim_jobs(broker, active)
    await add_jobs(broker, jobs)
    log.start()
    leases = [Lease(job.id, job.token, job.starts) for claimed in held for job in claimed.jobs]
    renewing = asyncio.create_task(broker.renew(leases, LEASE_MS))
    await drain(server, log, jobs, concurrency=100)
    await renewing
    for _ in range(3):
        client.delete(broker.keys.stalled_check())
        await broker.recover(interval_ms=1000)
    # The worst case: all their workers are lost, and all jobs are recovered.
    for claimed in held:
        client.delete(*(broker.keys.lock(job.id) for job in claimed.jobs))
    client.delete(broker.keys.stalled_check())
    found = await broker.recover(interval_ms=1000)
    if len(found.ids) != active:
        raise SystemExit(f"{active} jobs were lost by their workers, {len(found.ids)} came back")
    await broker.close()


async def all_active(server: ValkeyServer, log: SlowLog, active: int) -> None:
    """One worker runs as many jobs at once, which end in no order."""
    server.client().flushall()
    broker = open_broker(server)
    await add_jobs(broker, active * 2)
    await broker.close()
    queue = oxcart.Queue("limits", url=server.url)

    async def sleepy() -> None:
        await asyncio.sleep(random.uniform(2, 6))

    queue.fallback(sleepy)
    log.start()
    await drain(server, log, active * 2, concurrency=active, queue=queue)


# -- the parts


def raise_priority(pid: int) -> bool:
    """Puts a process before others, where the system allows it."""
    try:
        os.setpriority(os.PRIO_PROCESS, pid, -15)
    except PermissionError:
        return False
    return True


def open_broker(server: ValkeyServer, **more: Any) -> BullMQBroker:
    return BullMQBroker(Server(server.url), "limits", **more)


async def add_jobs(broker: BullMQBroker, count: int, options: JobOptions | None = None) -> None:
    data, given = role.payload(), options or JobOptions.build()
    for start in range(0, count, 10_000):
        jobs = [broker.encode("job", data, given) for _ in range(min(10_000, count - start))]
        await broker.add(jobs)


async def claim_jobs(broker: BullMQBroker, count: int) -> list[Claimed]:
    held = []
    while count > 0:
        claimed = await broker.claim(Ask(min(_CLAIM, count), LEASE_MS, "limits"))
        if not claimed.jobs:
            raise SystemExit(f"{count} jobs left to claim, and none there")
        count -= len(claimed.jobs)
        held.append(claimed)
    return held


class _Scripts:
    """An observer that reports script calls only."""

    def __init__(self, log: SlowLog) -> None:
        self.scripted = log.scripted

    def __getattr__(self, name: str) -> Any:
        return lambda *args: None


async def drain(
    server: ValkeyServer, log: SlowLog, jobs: int, *, concurrency: int, queue: oxcart.Queue | None = None
) -> None:
    """Runs a worker until so many jobs are done."""
    observer: Any = _Scripts(log)
    queue = queue or make_queue("limits", server.port)
    worker = oxcart.Worker(queue, concurrency=concurrency, observer=observer)
    running = asyncio.create_task(worker.run())
    await look(worker, running, jobs)
    worker.stop()
    await running


async def two_processes(server: ValkeyServer, checks: Checks, log: SlowLog, jobs: int, rounds: int) -> None:
    """One worker process against two, in interleaved rounds."""
    bench = Bench(server, Sizes(jobs=jobs))
    rates: dict[str, list[float]] = {"process_c100": [], "process_c100_x2": []}
    for _ in range(rounds):
        for workload, found in rates.items():
            log.wait()
            found.append((await bench.run(workload, SYSTEMS["oxcart"])).jobs_per_s)
    one, two = (statistics.median(found) for found in rates.values())
    what = f"two processes against one ({two:,.0f} and {one:,.0f} jobs/s)"
    checks.add(what, f"{two / one:.2f}×", f"≥ {TWO:g}×", two >= TWO * one)


async def run(arguments: argparse.Namespace) -> bool:
    console = make_console()
    checks = Checks(console)
    with ValkeyServer() as server, cores.apart(server.pid):
        held = Held(server.client(decode_responses=False), console, checks, arguments.patience)
        raised = raise_priority(server.pid)
        many, delayed, beside = arguments.active, arguments.delayed, arguments.jobs // 4

        runs = arguments.runs
        due = partial(due_at_once, server, held.log, delayed)
        elsewhere = partial(beside_active, server, held.log, many, beside)
        here = partial(all_active, server, held.log, many)
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            "first": held.first_use,
            "four": lambda: four_limits(server, checks, arguments.calls, many),
            "due": lambda: held.check(f"{delayed:,} delayed jobs due at once", runs, due),
            "elsewhere": lambda: held.check(
                f"{many:,} jobs active elsewhere, renewed, then recovered", runs, elsewhere
            ),
            "active": lambda: held.check(
                f"{many:,} jobs active in one worker, ending in no order", runs, here
            ),
            "two": lambda: two_processes(server, checks, held.log, arguments.jobs, arguments.rounds),
        }
        for part in arguments.parts:
            await parts[part]()
        held.idle_loop(arguments.idle)
    checks.print()
    priority = "raised" if raised else "usual"
    load_now = os.getloadavg()[0]
    console.print(f"[dim]{os.cpu_count()} cores, load {load_now:.1f}, server at {priority} priority[/dim]")
    return checks.kept


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.limits", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to do (all)")
    parser.add_argument("--calls", type=int, default=2000, help="calls of the first three limits (2000)")
    parser.add_argument("--active", type=int, default=10_000, help="active jobs (10000)")
    parser.add_argument("--delayed", type=int, default=100_000, help="jobs due at once (100000)")
    parser.add_argument("--jobs", type=int, default=20_000, help="jobs for one and two processes (20000)")
    parser.add_argument("--idle", type=int, default=10_000, help="calls of a loop that does nothing (10000)")
    parser.add_argument("--patience", type=float, default=600, help="seconds to wait for quiet spells (600)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each scenario (3)")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of one and two processes (9)")
    return 0 if asyncio.run(run(parser.parse_args())) else 1


if __name__ == "__main__":
    raise SystemExit(main())
