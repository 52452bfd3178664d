"""Measures how long one call blocks the server when a queue is long: `make bench-bounds`.

It fills a queue with a million jobs, in turn in every state, and runs every operation on whole queues: clean,
clear, obliterate, retry and promote of all, counts, pages. For each it prints the number of calls and how
long they blocked the server, by the server's slow log. It exits with 1 if its calls need over 10 ms.

Two kinds of calls are exceptions, shown with their cost: searches of a list by value, because the server can
only read the whole list; and trees of jobs, which one call adds or removes.

The slow log has wall-clock time, not CPU time. If the system allows it, the server runs at a raised priority,
so that other processes do not count. Pauses by a virtual machine's host still count. So an idle loop is timed
in the same way after every part: its longest delay shows the pauses of the machine. Consecutive calls of one
script need the same time: "needs" is the highest median of 50 consecutive logged calls of one script, and it
alone is judged. The longest call is information. A script that is called once is judged by that call.
Between calls an operation waits for a quiet period, within `--patience`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.servers import ValkeyServer

from benchmarks import cores
from benchmarks.limits import add_jobs, raise_priority
from benchmarks.peers import role
from benchmarks.peers.role import percentile
from benchmarks.report import make_console
from benchmarks.slowlog import Call, SlowLog, needed
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.scripts import load, verbs
from oxcart.broker.clock import now_ms
from oxcart.broker.connection import Server
from oxcart.model.flow import MOST_JOBS, Tree
from oxcart.model.options import JobOptions

#: The limit of one call, in ms.
HELD = 10.0

#: The slow log omits shorter calls, in µs (benchmarks/slowlog.py).
_LOGGED = 250

_HOUR = 3_600_000
#: Repetitions of operations that are a single call.
_TIMES = 20
#: Calls of an operation between two waits for a quiet period.
_STRETCH = 2000

# Moves waiting jobs to a sorted set, as if they had ended or been delayed; in parts, before the measurement.
# KEYS: from, to. ARGV: prefix, count, first score.
_MOVE = """
local ids = redis.call('LRANGE', KEYS[1], -tonumber(ARGV[2]), -1)
for i, id in ipairs(ids) do
  redis.call('ZADD', KEYS[2], tonumber(ARGV[3]) + i, id)
  redis.call('HSET', ARGV[1] .. id, 'finishedOn', tonumber(ARGV[3]) + i, 'failedReason', 'no', 'atm', 1)
end
redis.call('LTRIM', KEYS[1], 0, -(#ids + 1))
return #ids
"""


#: Why a call may be long.
SEARCH, ONE_STEP = "searches a list", "one step by its nature"


@dataclass
class Row:
    """One operation: its script calls, and their median, p99 and maximum in ms.

    `needs` is what the calls of its slowest script need.
    """

    what: str
    calls: int
    usual: float
    p99: float
    longest: float
    needs: float
    verb: str
    seconds: float
    excuse: str

    @property
    def fine(self) -> bool:
        """Whether its calls keep the limit."""
        return self.needs <= HELD


class Bounds:
    """Runs operations on a long queue and records how long each blocked the server."""

    def __init__(self, server: ValkeyServer, jobs: int, console: Console) -> None:
        self.client: Any = server.client(decode_responses=False)
        self._console = console
        self.log = SlowLog(self.client, {load(verb).sha: verb for verb in verbs()}, _LOGGED)
        self.jobs = jobs
        self.broker = BullMQBroker(Server(server.url), "bounds")
        self.rows: list[Row] = []
        self.idle: list[float] = []

    async def measure(self, what: str, *doing: Awaitable[Any], excuse: str = "") -> Any:
        """Runs one or several steps, and records the duration of their calls."""
        scripts: list[str] = []
        rested = 0.0

        def on_script(verb: str, seconds: float) -> None:
            nonlocal rested
            scripts.append(verb)
            self.log.scripted(verb, seconds)
            if not excuse and len(scripts) % _STRETCH == 0:
                rested += self.log.rest()

        self.broker.caller.on_script = on_script
        self.log.start()
        stolen = cores.stolen_ms()
        began = time.perf_counter()
        for one in doing:
            answer = await one
        took = time.perf_counter() - began - rested
        seen = self.log.stop()
        entries = [(call.ms, call.name) for call in seen.calls]
        longest, verb = max(entries, default=(_LOGGED / 1000, "-"))
        # The server also logs the commands of a script; they are no calls.
        kept = seen.kept_scripts
        spent = [call.ms for call in kept or seen.calls]
        spent += [_LOGGED / 1000] * max(0, len(scripts) - len(spent), 1 - len(spent))
        usual, p99 = percentile(spent, 0.5), percentile(spent, 0.99)
        # Commands within a script, and scripts that are usually shorter, appear only when delayed.
        whole = kept if scripts else seen.calls
        made = self.log.made if scripts else dict.fromkeys((call.name for call in whole), len(doing))
        needs = _needs(whole, made)
        self.rows.append(Row(what, len(scripts), usual, p99, longest, needs, verb, took, excuse))
        summary = f"{len(scripts):,} calls, longest {longest:.2f} ms ({verb})"
        stolen = cores.stolen_ms() - stolen
        self._console.print(f"[dim]{what}: {summary}, {stolen:.0f} ms stolen by the host[/dim]")
        self._console.file.flush()
        return answer

    def beside(self, calls: int) -> None:
        """Times an idle loop of about 2 ms."""
        self.idle += self.log.idle(calls)

    async def fill(self, **options: Any) -> None:
        """Empties the server and fills a queue."""
        self.client.flushall()
        # The pauses of Lua's collector grow with the number of compiled scripts: compile only the used ones.
        self.client.script_flush()
        await add_jobs(self.broker, self.jobs, JobOptions.build(**options))

    def move(self, state: str, count: int, first: int = 1) -> None:
        """Puts waiting jobs into a sorted set."""
        keys = self.broker.keys
        moved = 0
        while moved < count:
            part = min(5000, count - moved)
            args = (keys.key(""), part, first + moved)
            found = self.client.eval(_MOVE, 2, keys.wait(), keys.key(state), *args)
            if not found:
                raise SystemExit(f"{count - moved} jobs left to move, and none there")
            moved += found

    def age(self, first: int, end: int, every: int) -> None:
        """Makes waiting jobs old: those of a range, or every n-th."""
        keys = self.broker.keys
        for start in range(first, end, 10_000):
            last = min(start + 10_000, end) - 1
            pipe = self.client.pipeline(transaction=False)
            for job_id in self.client.lrange(keys.wait(), start, last)[::every]:
                pipe.hset(keys.job(job_id.decode()), "timestamp", 1)
            pipe.execute()

    def check(self, what: str, found: int, wanted: int) -> None:
        if found != wanted:
            raise SystemExit(f"{what}: {wanted:,} jobs were there, {found:,} were dealt with")


def _needs(logged: list[Call], made: Mapping[str, int]) -> float:
    """Returns what calls of the slowest script or command need, in ms."""
    floor = _LOGGED / 1000
    return max(needed(logged, made, floor).values(), default=floor)


async def waiting(bounds: Bounds) -> None:
    """Every operation that reads a long list, and clear."""
    broker, jobs = bounds.broker, bounds.jobs
    await bounds.fill()
    await bounds.measure("counts", *(broker.counts() for _ in range(_TIMES)))
    for place, first in (("first", 0), ("middle", jobs // 2), ("last", jobs - 100)):
        pages = (broker.page("wait", first, first + 99) for _ in range(_TIMES))
        await bounds.measure(f"page of 100 waiting jobs, {place}", *pages)
    await bounds.measure(
        "page of 10,000 waiting jobs", broker.page("wait", jobs // 3, jobs // 3 + 9_999, oldest=True)
    )
    middle = [job.id for job in await broker.page("wait", jobs // 2, jobs // 2 + _TIMES - 1)]
    await bounds.measure(
        "state of a job in the middle", *(broker.states([one]) for one in middle), excuse=SEARCH
    )
    await bounds.measure(
        "priority of a job in the middle",
        *(broker.updates.change_priority(one, 3) for one in middle),
        excuse=SEARCH,
    )
    middle = [job.id for job in await broker.page("wait", jobs // 2, jobs // 2 + _TIMES - 1)]
    await bounds.measure(
        "removal of a job in the middle", *(broker.remove_job(one) for one in middle), excuse=SEARCH
    )
    await bounds.measure("clean of waiting jobs that are all young", broker.bulk.clean(["wait"], 1))
    bounds.client.lpop(broker.keys.wait())
    found = await bounds.measure("removal of an orphan", broker.rescue.remove_orphans(), excuse=SEARCH)
    bounds.check("removal of an orphan", len(found), 1)
    counts = await broker.counts()
    left = counts["wait"] + counts["prioritized"]
    bounds.check("clear", await bounds.measure("clear of waiting jobs", broker.bulk.clear()), left)


async def mixed(bounds: Bounds) -> None:
    """Old and young jobs in one list, so that removals are in its middle."""
    broker, jobs = bounds.broker, bounds.jobs
    await bounds.fill()
    bounds.age(0, jobs, 10)
    # Entries to remove are marked by their place and then searched for from the nearer end.
    done = await bounds.measure(
        "clean of every tenth waiting job",
        broker.bulk.clean(["wait"], now_ms() - _HOUR),
        excuse=SEARCH,
    )
    left = (await broker.counts())["wait"]
    bounds.check("clean of every tenth waiting job", left, jobs - done)
    # In the middle, where a place is farthest from both ends.
    part = jobs // 20
    bounds.age(left // 2, left // 2 + part, 1)
    what = f"clean of {part:,} waiting jobs in the middle of young ones"
    done = await bounds.measure(what, broker.bulk.clean(["wait"], now_ms() - _HOUR), excuse=SEARCH)
    bounds.check(what, done, part)


async def ended(bounds: Bounds) -> None:
    """Retry of all, then clean of all."""
    broker, jobs = bounds.broker, bounds.jobs
    await bounds.fill()
    bounds.move("failed", jobs)
    pages = (broker.page("failed", jobs // 2, jobs // 2 + 99) for _ in range(_TIMES))
    await bounds.measure("page of 100 failed jobs, middle", *pages)
    await bounds.measure("page of 10,000 failed jobs", broker.page("failed", 0, 9_999))
    done = await bounds.measure("retry of all failed jobs", broker.bulk.retry_all("failed"))
    bounds.check("retry of all failed jobs", done, jobs)
    bounds.move("completed", jobs)
    done = await bounds.measure(
        "clean of completed jobs", broker.bulk.clean(["completed"], now_ms(), limit=jobs)
    )
    bounds.check("clean of completed jobs", done, jobs)


async def put_off(bounds: Bounds) -> None:
    """Promotion of all, then counts by priority."""
    broker, jobs = bounds.broker, bounds.jobs
    await bounds.fill(delay="1d", priority=5)
    await bounds.measure("clean of delayed jobs that are all young", broker.bulk.clean(["delayed"], 1))
    done = await bounds.measure("promotion of all delayed jobs", broker.bulk.promote_all())
    bounds.check("promotion of all delayed jobs", done, jobs)
    counted = (broker.bulk.counts_per_priority() for _ in range(_TIMES))
    await bounds.measure("counts per priority", *counted)
    done = await bounds.measure("clear of prioritized jobs", broker.bulk.clear())
    bounds.check("clear of prioritized jobs", done, jobs)


async def all_of_it(bounds: Bounds) -> None:
    """Obliterates a queue with jobs in every state."""
    broker, part = bounds.broker, bounds.jobs // 5
    await bounds.fill()
    for state in ("completed", "failed", "delayed", "prioritized"):
        bounds.move(state, part)
    await bounds.measure("trim of all events", broker.bulk.trim_events(0))
    done = await bounds.measure("obliterate", broker.bulk.obliterate())
    bounds.check("obliterate", done, bounds.jobs)


async def trees(bounds: Bounds) -> None:
    """Flows: each is added, and removed with its children, in one step."""
    broker = bounds.broker
    await bounds.fill()
    for size in (100, MOST_JOBS):
        wide = [_tree(size - 1, 1) for _ in range(_TIMES)]
        deep = [_tree((size - 1) // 9, 9) for _ in range(_TIMES)]
        for form, many in (("one parent", wide), ("ten generations", deep)):
            tops: list[str] = []
            what = f"flow of {size:,} jobs, {form}"
            await bounds.measure(
                f"{what}: add", *(_added(broker, one, tops) for one in many), excuse=ONE_STEP
            )
            removals = (broker.remove_job(top, children=True) for top in tops)
            await bounds.measure(f"{what}: remove with children", *removals, excuse=ONE_STEP)


def _tree(wide: int, deep: int) -> Tree:
    """A job over others: ``wide`` children, or as many chains of ``deep``."""

    def chain(left: int) -> tuple[Tree, ...]:
        below = chain(left - 1) if left > 1 else ()
        return (Tree("bounds", "bull", "job", role.payload(), JobOptions.build(), children=below),)

    below = tuple(one for _ in range(wide) for one in chain(deep))
    return Tree("bounds", "bull", "job", role.payload(), JobOptions.build(), children=below)


async def _added(broker: BullMQBroker, tree: Tree, tops: list[str]) -> None:
    tops.append((await broker.flows.add(tree)).id)


def show(bounds: Bounds, console: Console) -> bool:
    table = Table(title=f"Calls with {bounds.jobs:,} jobs in the queue", title_justify="left")
    for column in (
        "operation",
        "scripts",
        "p50",
        "p99",
        "needs",
        "longest ms",
        "in",
        "whole s",
        "within 10 ms",
    ):
        table.add_column(column, justify="left" if column in ("operation", "in") else "right")
    kept = True
    for row in bounds.rows:
        kept = kept and (row.fine or bool(row.excuse))
        verdict = "[green]yes[/green]" if row.fine else "[red]NO[/red]"
        if row.excuse:
            verdict = f"{'yes' if row.fine else 'no'}: {row.excuse}"
        table.add_row(
            row.what,
            f"{row.calls:,}",
            f"{row.usual:.2f}",
            f"{row.p99:.2f}",
            f"{row.needs:.2f}",
            f"{row.longest:.2f}",
            row.verb,
            f"{row.seconds:.1f}",
            verdict,
        )
    idle = bounds.idle
    middle = percentile(idle, 0.5)
    figures = (f"{one:.2f}" for one in (middle, percentile(idle, 0.99), middle, max(idle)))
    table.add_row("the machine: a loop that touches nothing", f"{len(idle):,}", *figures, "-", "-", "-")
    console.print(table)
    return kept


_PARTS = {part.__name__: part for part in (waiting, mixed, ended, put_off, all_of_it, trees)}


async def run(arguments: argparse.Namespace) -> bool:
    console = make_console()
    with ValkeyServer() as server, cores.apart(server.pid):
        raised = raise_priority(server.pid)
        bounds = Bounds(server, arguments.jobs, console)
        for part in arguments.parts:
            bounds.log.patience = arguments.patience
            await _PARTS[part](bounds)
            bounds.beside(arguments.loops)
        await bounds.broker.close()
    kept = show(bounds, console)
    priority = "raised" if raised else "usual"
    console.print(
        f"[dim]{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, server at {priority} priority[/dim]"
    )
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.bounds", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="jobs in the queue (1000000)")
    parser.add_argument(
        "--patience", type=float, default=180, help="seconds to wait for quiet spells, per part (180)"
    )
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=list(_PARTS), help="what to do (all)")
    parser.add_argument("--loops", type=int, default=1000, help="loops of the machine, per part (1000)")
    return 0 if asyncio.run(run(parser.parse_args())) else 1


if __name__ == "__main__":
    raise SystemExit(main())
