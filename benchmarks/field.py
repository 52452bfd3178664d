"""Oxcart against the field: `make bench-field`, and the last section of `make bench`.

taskiq, SAQ, arq, streaQ, Celery, RQ, Dramatiq and Huey, each in its own environment with pinned packages,
each with its best settings on this machine, on one private Valkey in interleaved rounds. Systems that cannot
be installed or do not run are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import redis
from rich.console import Console
from rich.table import Table
from tests.servers import ValkeyServer

from benchmarks import cores
from benchmarks.report import Result, make_console, medians, print_results, write
from benchmarks.systems import BUILD, PEERS, SYSTEMS, CannotInstall, System, environment
from benchmarks.workloads import FIELD, QUEUE, Bench, Round, Sizes

ROUNDS = 3
JOBS = 10_000


def _start(name: str, *arguments: str) -> list[str]:
    python = environment(name) / "bin" / "python"
    return [str(python), str(PEERS / f"field_{name}.py"), *arguments]


def _list(key: str, client: redis.Redis) -> int:
    return int(client.llen(key))


def _scored(key: str, client: redis.Redis) -> int:
    return int(client.zcard(key))


def _stream(key: str, client: redis.Redis) -> int:
    return int(client.xlen(key))


def _group(key: str, client: redis.Redis) -> int:
    """Returns the unacknowledged entries of a stream's group."""
    groups: Any = client.xinfo_groups(key)
    return int(groups[0]["lag"] + groups[0]["pending"])


def _hash(key: str, client: redis.Redis) -> int:
    return int(client.hlen(key))


def _sum(*parts: Callable[[redis.Redis], int]) -> Callable[[redis.Redis], int]:
    return lambda client: sum(part(client) for part in parts)


#: The systems of the field, by key.
PEERS_OF_FIELD = {
    system.key: system
    for system in (
        System(
            "taskiq",
            "taskiq-list",
            lambda: _start("taskiq", "list"),
            share=0.5,
            unfinished=partial(_list, QUEUE),
            settings="ListQueueBroker, no result backend, 100 async tasks, prefetch 100, parameters not "
            "validated; many: 100 kiq() at once. A job taken by a worker that dies is lost",
        ),
        System(
            "taskiq-stream",
            "taskiq-stream",
            lambda: _start("taskiq", "stream"),
            share=0.4,
            unfinished=partial(_group, QUEUE),
            settings="the same with RedisStreamBroker, which acknowledges",
        ),
        System(
            "saq",
            "saq",
            lambda: _start("saq"),
            share=0.25,
            unfinished=partial(_scored, f"saq:{QUEUE}:incomplete"),
            settings="concurrency 20 (100 is slower), ttl=-1 (finished jobs are not kept); many: enqueue() "
            "at once, max_concurrent_ops=100",
        ),
        System(
            "arq",
            "arq",
            lambda: _start("arq"),
            share=0.15,
            unfinished=partial(_scored, QUEUE),
            settings="max_jobs=100, queue_read_limit=100, poll_delay=1 ms, keep_result=0; "
            "many: 100 enqueue_job() at once",
        ),
        System(
            "streaq",
            "streaq",
            lambda: _start("streaq"),
            share=0.25,
            unfinished=partial(_stream, f"streaq:{QUEUE}:queues:normal"),
            settings="concurrency=100, prefetch=1000, ttl=0 (no result), silent; many: enqueue_many()",
        ),
        System(
            "celery",
            "celery",
            lambda: _start("celery"),
            share=0.2,
            unfinished=_sum(partial(_list, QUEUE), partial(_hash, "unacked")),
            parked=(QUEUE,),
            settings="2 workers with the solo pool (prefork and threads are slower), prefetch multiplier 64, "
            "results ignored, no gossip, mingle, heartbeat, events, remote control; many: apply_async() with "
            "one producer. A job taken by a worker that dies is lost",
        ),
        System(
            "rq",
            "rq",
            lambda: _start("rq"),
            share=0.06,
            unfinished=_sum(partial(_list, f"rq:queue:{QUEUE}"), partial(_scored, f"rq:wip:{QUEUE}")),
            parked=(f"rq:queue:{QUEUE}",),
            settings="worker-pool of 4 SimpleWorkers (no fork per job), result_ttl=0; many: enqueue_many()",
        ),
        System(
            "dramatiq",
            "dramatiq",
            lambda: _start("dramatiq"),
            share=0.3,
            unfinished=partial(_hash, f"dramatiq:{QUEUE}.msgs"),
            parked=(f"dramatiq:{QUEUE}", f"dramatiq:{QUEUE}.msgs"),
            settings="2 processes with 8 threads, no middleware; many: send() one after the other",
        ),
        System(
            "huey",
            "huey",
            lambda: _start("huey"),
            share=0.4,
            unfinished=partial(_list, f"huey.redis.{QUEUE}"),
            parked=(f"huey.redis.{QUEUE}",),
            settings="4 worker processes, results=False; many: one after the other. "
            "A job taken by a worker that dies is lost",
        ),
    )
}
SYSTEMS_OF_FIELD = {"oxcart": SYSTEMS["oxcart"], **PEERS_OF_FIELD}


async def _run(
    console: Console, systems: Sequence[System], sizes: Sizes, rounds: int, budget: float | None
) -> tuple[list[Round], dict[str, str]]:
    """Runs the rounds; returns them and why a system has none."""
    missing: dict[str, str] = {}
    for system in systems:
        try:
            system.start()
        except CannotInstall as error:
            missing[system.name] = f"cannot be installed here: {_last_line(error)}"
    found: list[Round] = []
    with ValkeyServer() as server, cores.apart(server.pid):
        bench = Bench(server, sizes)
        began = time.monotonic()
        for number in range(rounds):
            spent = time.monotonic() - began
            if number and budget and spent * (number + 1) / number > budget:
                console.print(f"[dim]{number} rounds: another would take more than the budget[/dim]")
                break
            for workload in FIELD:
                for system in systems:
                    if system.name in missing:
                        continue
                    try:
                        one = await bench.run(workload, system)
                    except RuntimeError as error:
                        missing[system.name] = f"did not finish {workload}: {_last_line(error)}"
                        continue
                    one.number = number
                    found.append(one)
                    console.print(
                        f"[dim]{workload} {number + 1}/{rounds} {one.words}, {one.jobs:,} jobs[/dim]"
                    )
    return [one for one in found if one.system not in missing], missing


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]


def measure(
    console: Console,
    output: Path,
    *,
    systems: Sequence[System] = tuple(SYSTEMS_OF_FIELD.values()),
    jobs: int = JOBS,
    rounds: int = ROUNDS,
    budget: float | None = None,
) -> bool:
    """Measures the field and writes its records; returns whether all systems were measured."""
    sizes = Sizes(jobs=jobs, singles=max(1, jobs // 4), warm=max(1, jobs // 10))
    found, missing = asyncio.run(_run(console, systems, sizes, rounds, budget))
    results = medians(found)
    write(output, results, found, beside=FIELD)
    print_results(console, results)
    _print_settings(console, systems, results, sizes)
    for name, why in missing.items():
        console.print(f"[red]{name}: {why}[/red]")
    return not missing


def _print_settings(
    console: Console, systems: Sequence[System], results: Sequence[Result], sizes: Sizes
) -> None:
    versions = {result.system: result.version for result in results}
    table = Table(title="The field's settings", title_justify="left")
    for column in ("system", "version", "jobs", "settings"):
        table.add_column(column, justify="right" if column == "jobs" else "left")
    for system in systems:
        words = system.settings or "concurrency 100, defaults: jobs, results and events are kept"
        jobs = f"{sizes.jobs * system.share:,.0f}"
        table.add_row(system.name, versions.get(system.name, "–"), jobs, words)
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.field", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds ({ROUNDS})")
    parser.add_argument("--budget", type=float, help="seconds after which no round begins that would not end")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"jobs of the fastest systems ({JOBS})")
    parser.add_argument(
        "--systems", default=",".join(SYSTEMS_OF_FIELD), help="of " + ", ".join(SYSTEMS_OF_FIELD)
    )
    parser.add_argument("--output", type=Path, default=BUILD / "bench.json", help="build/bench.json")
    parser.add_argument("--check", action="store_true", help="exit 1 when a system could not be measured")
    arguments = parser.parse_args()
    keys = [key.strip() for key in arguments.systems.split(",") if key.strip()]
    for key in keys:
        if key not in SYSTEMS_OF_FIELD:
            parser.error(f"no such system: {key}")
    whole = measure(
        make_console(),
        arguments.output,
        systems=[SYSTEMS_OF_FIELD[key] for key in keys],
        jobs=arguments.jobs,
        rounds=arguments.rounds,
        budget=arguments.budget,
    )
    return 0 if whole or not arguments.check else 1


if __name__ == "__main__":
    raise SystemExit(main())
