"""How long one call holds the server when a queue is long: `make bench-bounds`.

Fills a queue with a million jobs, in turn in every state, and runs every operation on whole queues: clean,
drain, obliterate, retry and promote of all, counts, pages. For each it prints how many calls it made and how
long the longest of them held the server, by the server's own slow log. Exits 1 when one is over 10 ms.

What must search a list by value is shown with its cost and named as the exception: no command of the server
finds an id in a list without walking through it.

The slow log tells time, not CPU: where the system allows it the server runs at a raised priority, so that
what it tells is its own time and not that of others on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.servers import ValkeyServer

from benchmarks.limits import add_jobs, raise_priority
from benchmarks.report import make_console
from oxcart.broker.bullmq import operations, rescue
from oxcart.broker.bullmq.broker import BullMQBroker, now_ms
from oxcart.broker.bullmq.scripts import load, verbs
from oxcart.broker.connection import Server
from oxcart.model.options import JobOptions

#: What one call may take, in ms.
HELD = 10.0

#: Shorter calls are not logged, in µs: the server logs every command of a script too, which would take longer
#: than the commands do.
_LOGGED = 250

_HOUR = 3_600_000
_OWN = frozenset({b"CONFIG", b"SLOWLOG"})

# Moves waiting jobs to a sorted set, as if they had ended or been put off; done in parts, before anything is
# measured. KEYS: from, to. ARGV: prefix, how many, first score.
_MOVE = """
local ids = redis.call('LRANGE', KEYS[1], -tonumber(ARGV[2]), -1)
for i, id in ipairs(ids) do
  redis.call('ZADD', KEYS[2], tonumber(ARGV[3]) + i, id)
  redis.call('HSET', ARGV[1] .. id, 'finishedOn', tonumber(ARGV[3]) + i, 'failedReason', 'no', 'atm', 1)
end
redis.call('LTRIM', KEYS[1], 0, -(#ids + 1))
return #ids
"""


@dataclass
class Row:
    """One operation: how many scripts it called, the usual and the longest call in ms."""

    what: str
    calls: int
    usual: float
    longest: float
    verb: str
    seconds: float
    searches: bool


class Bounds:
    """Runs operations on a long queue and notes how long each held the server."""

    def __init__(self, server: ValkeyServer, jobs: int, console: Console) -> None:
        self.client: Any = server.client(decode_responses=False)
        self._console = console
        self._names = {load(verb).sha: verb for verb in verbs()}
        self.jobs = jobs
        self.broker = BullMQBroker(Server(server.url), "bounds")
        self.rows: list[Row] = []

    async def measure(self, what: str, doing: Awaitable[Any], *, searches: bool = False) -> Any:
        """Does something, and notes the longest call of it."""
        scripts: list[str] = []
        self.broker.caller.on_script = lambda verb, _: scripts.append(verb)
        self.client.config_set("slowlog-max-len", 1_000_000)
        self.client.config_set("slowlog-log-slower-than", _LOGGED)
        self.client.slowlog_reset()
        began = time.perf_counter()
        answer = await doing
        took = time.perf_counter() - began
        self.client.config_set("slowlog-log-slower-than", -1)
        entries = [
            (entry[2] / 1000, self._verb(entry[3]))
            for entry in self.client.execute_command("SLOWLOG", "GET", -1)
            if entry[3][0].upper() not in _OWN
        ]
        self.client.slowlog_reset()
        longest, verb = max(entries, default=(_LOGGED / 1000, "-"))
        usual = sorted(spent for spent, _ in entries)[len(entries) // 2] if entries else _LOGGED / 1000
        self.rows.append(Row(what, len(scripts), usual, longest, verb, took, searches))
        self._console.print(f"[dim]{what}: {len(scripts):,} calls, longest {longest:.2f} ms ({verb})[/dim]")
        return answer

    def _verb(self, words: list[bytes]) -> str:
        if words[0].upper() in (b"EVALSHA", b"EVAL"):
            return self._names.get(words[1], "a script sent whole")
        return words[0].decode("utf-8", "replace").upper()

    async def fill(self, **options: Any) -> None:
        """An empty server with a queue of so many jobs."""
        self.client.flushall()
        for verb in verbs():  # the first use of a script compiles it, once
            self.client.script_load(load(verb).text)
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
        """Makes waiting jobs old: those of a range, or every so many of them."""
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


async def waiting(bounds: Bounds) -> None:
    """Everything that looks at a long list, and drain."""
    broker, jobs = bounds.broker, bounds.jobs
    await bounds.fill()
    await bounds.measure("counts", broker.counts())
    for place, first in (("first", 0), ("middle", jobs // 2), ("last", jobs - 100)):
        await bounds.measure(f"page of 100 waiting jobs, {place}", broker.page("wait", first, first + 99))
    await bounds.measure(
        "page of 10,000 waiting jobs", broker.page("wait", jobs // 3, jobs // 3 + 9_999, oldest=True)
    )
    middle = (await broker.page("wait", jobs // 2, jobs // 2))[0].id
    await bounds.measure("state of a job in the middle", broker.states([middle]), searches=True)
    await bounds.measure("priority of a job in the middle", broker.change_priority(middle, 3), searches=True)
    await bounds.measure("removal of a job in the middle", broker.remove_job(middle), searches=True)
    await bounds.measure("clean of waiting jobs that are all young", operations.clean(broker, "wait", 1))
    bounds.client.lpop(broker.keys.wait())
    found = await bounds.measure("removal of an orphan", rescue.remove_orphans(broker), searches=True)
    bounds.check("removal of an orphan", len(found), 1)
    left = (await broker.counts())["wait"]
    bounds.check("drain", await bounds.measure("drain of waiting jobs", operations.drain(broker)), left)


async def mixed(bounds: Bounds) -> None:
    """Old and young jobs in one list: what is removed is in its middle."""
    broker, jobs = bounds.broker, bounds.jobs
    await bounds.fill()
    bounds.age(0, jobs, 10)
    done = await bounds.measure(
        "clean of every tenth waiting job", operations.clean(broker, "wait", now_ms() - _HOUR)
    )
    left = (await broker.counts())["wait"]
    bounds.check("clean of every tenth waiting job", left, jobs - done)
    # In the middle, where a place is farthest from both ends.
    part = jobs // 20
    bounds.age(left // 2, left // 2 + part, 1)
    what = f"clean of {part:,} waiting jobs in the middle of young ones"
    done = await bounds.measure(what, operations.clean(broker, "wait", now_ms() - _HOUR))
    bounds.check(what, done, part)


async def ended(bounds: Bounds) -> None:
    """Retry of all, then clean of all."""
    broker, jobs = bounds.broker, bounds.jobs
    await bounds.fill()
    bounds.move("failed", jobs)
    await bounds.measure("page of 100 failed jobs, middle", broker.page("failed", jobs // 2, jobs // 2 + 99))
    await bounds.measure("page of 10,000 failed jobs", broker.page("failed", 0, 9_999))
    done = await bounds.measure("retry of all failed jobs", operations.retry_all(broker, "failed"))
    bounds.check("retry of all failed jobs", done, jobs)
    bounds.move("completed", jobs)
    done = await bounds.measure(
        "clean of completed jobs", operations.clean(broker, "completed", now_ms(), limit=jobs)
    )
    bounds.check("clean of completed jobs", done, jobs)


async def put_off(bounds: Bounds) -> None:
    """Promotion of all, then counts by priority."""
    broker, jobs = bounds.broker, bounds.jobs
    await bounds.fill(delay="1d", priority=5)
    await bounds.measure("clean of delayed jobs that are all young", operations.clean(broker, "delayed", 1))
    done = await bounds.measure("promotion of all delayed jobs", operations.promote_all(broker))
    bounds.check("promotion of all delayed jobs", done, jobs)
    await bounds.measure("counts per priority", operations.counts_per_priority(broker))
    done = await bounds.measure("drain of prioritized jobs", operations.drain(broker))
    bounds.check("drain of prioritized jobs", done, jobs)


async def all_of_it(bounds: Bounds) -> None:
    """A queue with jobs in every state goes."""
    broker, part = bounds.broker, bounds.jobs // 5
    await bounds.fill()
    for state in ("completed", "failed", "delayed", "prioritized"):
        bounds.move(state, part)
    await bounds.measure("trim of all events", operations.trim_events(broker, 0))
    done = await bounds.measure("obliterate", operations.obliterate(broker))
    bounds.check("obliterate", done, bounds.jobs)


def show(bounds: Bounds, console: Console) -> bool:
    table = Table(title=f"Longest call with {bounds.jobs:,} jobs in the queue", title_justify="left")
    for column in ("operation", "scripts", "usual ms", "longest ms", "in", "whole s", "within 10 ms"):
        table.add_column(column, justify="left" if column in ("operation", "in") else "right")
    kept = True
    for row in bounds.rows:
        fine = row.longest <= HELD
        kept = kept and (fine or row.searches)
        verdict = "[green]yes[/green]" if fine else "[red]NO[/red]"
        if row.searches:
            verdict = f"{'yes' if fine else 'no'}: searches a list"
        table.add_row(
            row.what,
            f"{row.calls:,}",
            f"{row.usual:.2f}",
            f"{row.longest:.2f}",
            row.verb,
            f"{row.seconds:.1f}",
            verdict,
        )
    console.print(table)
    return kept


async def run(arguments: argparse.Namespace) -> bool:
    console = make_console()
    with ValkeyServer() as server:
        raised = raise_priority(server.pid)
        bounds = Bounds(server, arguments.jobs, console)
        for part in (waiting, mixed, ended, put_off, all_of_it):
            await part(bounds)
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
    return 0 if asyncio.run(run(parser.parse_args())) else 1


if __name__ == "__main__":
    raise SystemExit(main())
