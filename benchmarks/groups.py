"""Measures fair groups: `make bench-groups`. It counts jobs and commands, so a busy machine changes nothing.

- In which part of a run 99 groups of ten jobs are done beside one with 100 000: the first 2 %.
- How many commands a claimed job costs with 100 000 groups, against 10: at most 1.3 times.
- How many commands a job costs, from its add to its end, with a group and without.

    python -m benchmarks.groups [--jobs 100000] [--groups 100000] [--check]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from tests.servers import ValkeyServer

from oxcart import Queue
from oxcart.broker.port import Ask, ClaimedJob, Outcome, OutcomeKind
from oxcart.model.retention import REMOVE

BATCH = 50
SOON, DEARER = 0.02, 1.3


async def add(queue: Queue, rows: Iterable[Any]) -> None:
    rest = iter(rows)
    while part := list(islice(rest, 2000)):
        await queue.add_many(part)


async def step(queue: Queue, running: list[ClaimedJob]) -> list[ClaimedJob]:
    """Completes jobs and claims the next ones in one call, as a worker does."""
    broker = queue._core.broker
    done = [
        Outcome(OutcomeKind.COMPLETED, job.id, job.token, job.starts, value=b"1", retention=REMOVE, claim=job)
        for job in running
    ]
    if not done:
        return (await broker.claim(Ask(BATCH))).jobs
    return (await broker.finish(done, Ask(BATCH)))[1].jobs


def rows(group: str | None, many: int) -> Iterator[Any]:
    return (("n", number, {"group": group} if group else {}) for number in range(many))


async def fairness(queue: Queue, jobs: int) -> float:
    """Returns in which part of a run the small groups are done."""
    await add(queue, rows("hog", jobs))
    for number in range(99):
        await add(queue, rows(f"small-{number}", 10))
    place, left, running = 0, 990, list[ClaimedJob]()
    while left and (running := await step(queue, running)):
        for job in running:
            place += 1
            left -= job.options.group != "hog"
            if not left:
                break
    await queue.jobs.obliterate(force=True)
    return place / (jobs + 990)


async def cost(queue: Queue, store: Any, names: Iterable[str | None], jobs: int) -> tuple[float, float]:
    """Returns the commands per added job, and per job that is claimed and completed."""
    store.config_resetstat()
    await add(queue, (("n", 0, {"group": name} if name else {}) for name in names))
    added = _calls(store) / jobs
    running = await step(queue, await step(queue, []))
    store.config_resetstat()
    many = 0
    for _ in range(20):
        many += len(running)
        running = await step(queue, running)
    found = _calls(store) / many
    await queue.jobs.obliterate(force=True)
    return added, found


def _calls(store: Any) -> int:
    stats: dict[str, dict[str, Any]] = store.info("commandstats")
    return sum(one["calls"] for name, one in stats.items() if name not in ("cmdstat_info", "cmdstat_config"))


async def measure(jobs: int, groups: int) -> bool:
    fine = True
    with ValkeyServer() as server:
        store = server.client()
        async with Queue("groups", url=server.url) as queue:
            part = await fairness(queue, jobs)
            fine &= part <= SOON
            print(
                f"99 groups of 10 beside one of {jobs:,}: done after {part:.2%} of the run (bound {SOON:.0%})"
            )
        async with Queue("plain", url=server.url) as queue:
            none = await cost(queue, store, (None for _ in range(groups)), groups)
        async with Queue("few", url=server.url) as queue:
            few = await cost(queue, store, (f"g{number % 10}" for number in range(groups)), groups)
        async with Queue("many", url=server.url) as queue:
            many = await cost(queue, store, (f"g{number}" for number in range(groups)), groups)
        for what, (added, claimed) in {"none": none, "10": few, f"{groups:,}": many}.items():
            print(f"groups: {what:>8}   commands per add {added:5.1f}   per claim and end {claimed:5.1f}")
        dearer = many[1] / few[1]
        fine &= dearer <= DEARER
        print(f"{groups:,} groups against 10: {dearer:.2f} times the commands of a claim (bound {DEARER})")
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--groups", type=int, default=100_000)
    parser.add_argument("--check", action="store_true", help="exit 1 when a bound is not met")
    args = parser.parse_args()
    fine = asyncio.run(measure(args.jobs, args.groups))
    return 1 if args.check and not fine else 0


if __name__ == "__main__":
    sys.exit(main())
