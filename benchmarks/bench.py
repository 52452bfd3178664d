"""Oxcart against its peers: `make bench`, or `python -m benchmarks.bench --help`.

Interleaved rounds on one private Valkey; medians; `build/bench.json`. `README.md` states the method.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import platform
import time
from collections.abc import Container
from pathlib import Path

from rich.console import Console
from tests.servers import ValkeyServer

from benchmarks import cores, field
from benchmarks.delay import SlowLink
from benchmarks.report import make_console, medians, print_floors, print_results, write
from benchmarks.systems import BUILD, SYSTEMS, CannotInstall
from benchmarks.workloads import WORKLOADS, Bench, Round, Sizes

SLOW = "process_c100_10ms"


#: The settings of `--quick`.
QUICK = {
    "rounds": 3,
    "budget": 165.0,
    "jobs": 10_000,
    "singles": 2000,
    "latencies": 150,
    "warm": 1000,
    "systems": "oxcart,node5,dropin,pypi",
    "workloads": "add,add_many,process_c100,process_c100_x2,latency",
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller defaults, under three minutes")
    parser.add_argument("--rounds", type=int, default=9, help="rounds (9)")
    parser.add_argument("--budget", type=float, help="seconds after which no round begins that would not end")
    parser.add_argument("--jobs", type=int, default=Sizes.jobs, help="jobs of bulk and processing (20000)")
    parser.add_argument("--singles", type=int, help="jobs added one at a time (a quarter of --jobs)")
    parser.add_argument("--latencies", type=int, default=Sizes.latencies, help="jobs of `latency` (500)")
    parser.add_argument("--warm", type=int, default=Sizes.warm, help="jobs of a warm-up (2000)")
    parser.add_argument("--delay-ms", type=float, default=10.0, help="delay of the slow link, each way (10)")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="of " + ", ".join(WORKLOADS))
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="of " + ", ".join(SYSTEMS))
    parser.add_argument("--output", type=Path, default=BUILD / "bench.json", help="build/bench.json")
    parser.add_argument("--no-field", action="store_true", help="without the field's section at the end")
    parser.add_argument("--check", action="store_true", help="exit 1 when a measured floor is not met")
    if parser.parse_known_args()[0].quick:
        parser.set_defaults(**QUICK)
    arguments = parser.parse_args()
    arguments.workloads = _chosen(parser, "workload", arguments.workloads, WORKLOADS)
    arguments.systems = _chosen(parser, "system", arguments.systems, SYSTEMS)
    return arguments


def _chosen(parser: argparse.ArgumentParser, what: str, given: str, known: Container[str]) -> list[str]:
    chosen = [word.strip() for word in given.split(",") if word.strip()]
    for word in chosen:
        if word not in known:
            parser.error(f"no such {what}: {word}")
    return chosen


async def run(arguments: argparse.Namespace, console: Console) -> list[Round]:
    sizes = Sizes(
        jobs=arguments.jobs,
        singles=arguments.singles or max(1, arguments.jobs // 4),
        latencies=arguments.latencies,
        warm=arguments.warm,
        brief=arguments.quick,
    )
    systems = [SYSTEMS[key] for key in arguments.systems]
    for system in systems:
        system.start()  # installs missing packages before any timing
    rounds: list[Round] = []
    async with contextlib.AsyncExitStack() as stack:
        server = stack.enter_context(ValkeyServer())
        stack.enter_context(cores.apart(server.pid))
        link = None
        if SLOW in arguments.workloads:
            link = await stack.enter_async_context(SlowLink(server.port, arguments.delay_ms / 1000))
        bench = Bench(server, sizes, link.port if link else None)
        began = time.monotonic()
        for number in range(arguments.rounds):
            spent = time.monotonic() - began
            if number and arguments.budget and spent * (number + 1) / number > arguments.budget:
                console.print(f"[dim]{number} rounds: another would take more than the budget[/dim]")
                break
            for workload in arguments.workloads:
                for system in systems:
                    if number % system.every and not arguments.quick:
                        continue
                    before = link.cpu() if link else 0.0
                    one = await bench.run(workload, system)
                    one.number = number
                    rounds.append(one)
                    line = f"{workload} {number + 1}/{arguments.rounds} {one.words}"
                    if link and workload == SLOW:
                        busy = (link.cpu() - before) / one.seconds
                        line += f"; the proxy used {busy:.0%} of a core"
                        if busy > 0.7:
                            line += " and may be the bottleneck"
                    console.print(f"[dim]{line}[/dim]")
    return rounds


def main() -> int:
    arguments = _arguments()
    console = make_console()
    began = time.monotonic()
    try:
        rounds = asyncio.run(run(arguments, console))
    except CannotInstall as error:
        raise SystemExit(str(error)) from None
    results = medians(rounds)
    write(arguments.output, results, rounds)
    print_results(console, results)
    met = print_floors(console, rounds)
    if not arguments.quick and not arguments.no_field:
        field.measure(console, arguments.output)
    load = os.getloadavg()[0]
    console.print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load:.1f}, "
        f"{time.monotonic() - began:.0f} s; written to {os.path.relpath(arguments.output)}"
    )
    return 0 if met or not arguments.check else 1


if __name__ == "__main__":
    raise SystemExit(main())
