"""The capacity model behind docs/scaling.md: `make scaling`.

It measures what a call and a job cost on this machine, checks the simulation of `benchmarks.fleet` against
real runs of other shapes, and then lets it predict fleets. The page's tables are written between the marks
`<!-- name -->` and `<!-- end -->`, its plots beside it.

    python -m benchmarks.scaling [--check] [--jobs 6000] [--rounds 5] [--page docs/scaling.md]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tests.servers import ValkeyServer

from benchmarks.fleet import Costs, Fleet, Plan
from oxcart.drawing.curves import curves

ROOT = Path(__file__).parents[1]
#: By which a prediction may differ from a real run; of a light load by so much of a processor instead.
WITHIN, LIGHT = 0.2, 0.02
#: Shapes to check the model against. It is calibrated with 5, 20 and 100 slots and handlers that return; for
#: cold caches with 10 and 50 slots and handlers of 10 ms.
SHAPES = (
    Plan(concurrency=10),
    Plan(concurrency=40),
    Plan(concurrency=100, handler=0.05),
    Plan(concurrency=20, handler=0.02),
    Plan(workers=2, concurrency=20, handler=0.02),
    Plan(workers=4, concurrency=10, handler=0.05),
    Plan(masters=2, workers=2, concurrency=40),
    Plan(masters=2, workers=2, concurrency=20, handler=0.02),
)
#: Shapes to check waits with: so many jobs arrive at random times.
WAITS = (
    (Plan(concurrency=2, handler=0.2, rate=7), 280),
    (Plan(workers=2, concurrency=2, handler=0.2, rate=15), 600),
    (Plan(workers=4, concurrency=2, handler=0.2, rate=32), 1_280),
)
#: Seed of their arrivals, in reality as in the model.
SEED = 1


class Run(NamedTuple):
    """What a real run showed.

    Attributes:
        throughput: Jobs a second.
        calls: Calls per job.
        server: Seconds of the server's processor per job.
        worker: Seconds of the workers' processors per job.
    """

    throughput: float
    calls: float
    server: float
    worker: float


def place(urls: str) -> dict[str, Any]:
    """Returns where the queue is: on one server, or with a partition on each of several."""
    several = urls.split(",")
    return {"url": urls} if len(several) == 1 else {"url": several, "partitions": len(several)}


async def work(urls: str, concurrency: int, handler: float) -> None:
    """One worker process: says when it is ready, waits for a line, and works until its input ends."""
    from oxcart import Queue, Worker

    async def sleeps() -> None:
        await asyncio.sleep(handler)

    async def returns() -> None:
        pass

    queue = Queue("scaling", **place(urls))
    queue.fallback(sleeps if handler else returns)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    async with Worker(queue, concurrency=concurrency).running():
        await asyncio.to_thread(sys.stdin.read)
    await queue.close()


async def _fill(urls: str, jobs: int) -> None:
    from oxcart import Queue

    async with Queue("scaling", **place(urls)) as queue:
        await queue.add_many([("job", {"text": "x" * 80, "n": 1}) for _ in range(jobs)])


async def _feed(url: str, rate: float, jobs: int) -> None:
    """Adds jobs at the random times of the model."""
    from oxcart import Queue

    dice, at, adding = random.Random(SEED), 0.0, []
    async with Queue("scaling", url=url) as queue:
        begin = time.monotonic()
        for _ in range(jobs):
            at += dice.expovariate(rate)
            await asyncio.sleep(max(0.0, begin + at - time.monotonic()))
            adding.append(asyncio.create_task(queue.add("job", {"text": "x" * 80, "n": 1})))
        await asyncio.gather(*adding)


@contextlib.contextmanager
def _crew(urls: str, plan: Plan) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Runs the workers of a plan."""
    facts = [urls, str(plan.concurrency), str(plan.handler)]
    crew = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.scaling", "--work", *facts],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(plan.workers)
    ]
    try:
        for one in crew:
            assert one.stdout is not None
            one.stdout.readline()
        for one in crew:
            assert one.stdin is not None
            one.stdin.write(b"go\n")
            one.stdin.flush()
        yield crew
    finally:
        for one in crew:
            assert one.stdin is not None
            one.stdin.close()
            one.wait(60)


def waits(plan: Plan, jobs: int) -> list[float]:
    """Returns the seconds that jobs really wait from their add to their claim, in order."""
    assert plan.rate is not None
    with ValkeyServer() as server, _crew(server.url, plan):
        client = server.client()
        asyncio.run(_fill(server.url, plan.workers * plan.concurrency))  # all have connected then
        _after([client], plan.workers * plan.concurrency)
        client.unlink("bull:scaling:completed")
        asyncio.run(_feed(server.url, plan.rate, jobs))
        _after([client], jobs)
        ids = [str(one) for one in client.zrange("bull:scaling:completed", 0, -1)]
        times = [client.hmget(f"bull:scaling:{one}", "timestamp", "processedOn") for one in ids]
    found = [max(0, int(claimed or 0) - int(added or 0)) / 1000 for added, claimed in times]
    return sorted(found)


def measure(plan: Plan, jobs: int) -> tuple[Run, float]:
    """Runs a plan for real; returns what it showed, and the server's seconds per added job."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(ValkeyServer()) for _ in range(plan.masters)]
        urls, clients = ",".join(one.url for one in servers), [one.client() for one in servers]
        before = _cpu(clients)
        asyncio.run(_fill(urls, jobs))
        added = (_cpu(clients) - before) / jobs
        with _crew(urls, plan) as crew:
            # The first part is left out: workers connect, and scripts are compiled.
            first = _after(clients, jobs // 5)
            start = _moment(clients, crew)
            last = _after(clients, jobs - jobs // 20)
            end = _moment(clients, crew)
    many = last - first
    seconds, calls, spent, worked = (new - old for old, new in zip(start, end, strict=True))
    return Run(many / seconds, calls / many, spent / many, worked / many), added


def idle(workers: int, seconds: float) -> float:
    """Returns the seconds of the server's processor that an idle worker costs it per second."""
    with ValkeyServer() as server:
        clients = [server.client()]

        def spent() -> float:
            before = _cpu(clients)
            time.sleep(seconds)
            return (_cpu(clients) - before) / seconds

        alone = spent()
        with _crew(server.url, Plan(workers=workers)):
            asyncio.run(_fill(server.url, workers))
            _after(clients, workers)  # all are awake
            time.sleep(seconds)
            return max(0.0, spent() - alone) / workers


def _after(clients: list[Any], jobs: int) -> int:
    names = ["scaling"] if len(clients) == 1 else [f"scaling#{number}" for number in range(len(clients))]
    while True:
        counts = (one.zcard(f"bull:{name}:completed") for one, name in zip(clients, names, strict=True))
        if (done := sum(map(int, counts))) >= jobs:
            return done
        time.sleep(0.01)


def _cpu(clients: list[Any]) -> float:
    found = [one.info("cpu") for one in clients]
    return float(sum(info["used_cpu_user"] + info["used_cpu_sys"] for info in found))


def _moment(clients: list[Any], crew: list[subprocess.Popen[bytes]]) -> tuple[float, float, float, float]:
    stats = [one.info("commandstats") for one in clients]
    calls = sum(one.get("cmdstat_evalsha", {"calls": 0})["calls"] for one in stats)
    worked = 0
    for one in crew:
        fields = Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split()
        worked += int(fields[11]) + int(fields[12])
    return time.monotonic(), float(calls), _cpu(clients), worked / 100


def best(plan: Plan, jobs: int, rounds: int) -> tuple[Run, float]:
    """Returns the fastest of some runs: other work on the machine only makes a run slower."""
    return max((measure(plan, jobs) for _ in range(rounds)), key=lambda found: found[0].throughput)


def calibrate(jobs: int, rounds: int) -> tuple[Costs, float]:
    """Returns the costs of this machine, and the seconds that the way to a server and back takes."""
    runs = [best(Plan(concurrency=slots), jobs * size, rounds) for slots, size in ((5, 2), (20, 4), (100, 6))]
    found = [run for run, _ in runs]
    server_call, server_job = _line([(run.calls, run.server) for run in found])
    worker_call, worker_job = _line([(run.calls, run.worker) for run in found])
    light = [best(Plan(concurrency=slots, handler=0.01), jobs, rounds)[0] for slots in (10, 50)]
    servers = [(run.server - server_job) / run.calls - server_call for run in light]
    workers = [(run.worker - worker_job) / run.calls - worker_call for run in light]
    server_cold, worker_cold = (max(0.0, sum(row) / len(row)) for row in (servers, workers))
    added = min(added for _, added in runs)
    costs = Costs(server_call, server_job, added, worker_call, worker_job, server_cold, worker_cold)
    costs = replace(costs, server_idle=idle(10, 10.0))
    # With one call in flight the rest of its time is the way.
    ways = [(1 / run.throughput - run.server - run.worker) / run.calls for run in found[:2]]
    return costs, max(0.0, sum(ways) / len(ways))


def _line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Returns slope and height of the line that is nearest to some points, by relative distance."""
    weights = [1 / y**2 for _, y in points]
    whole = sum(weights)
    x0 = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / whole
    y0 = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / whole
    up = sum(w * (x - x0) * (y - y0) for w, (x, y) in zip(weights, points, strict=True))
    slope = up / sum(w * (x - x0) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    return slope, y0 - slope * x0


def predict(plan: Plan, costs: Costs, way: float, cores: int | None = 2) -> Any:
    """Returns what the model says about a plan."""
    seconds = max(2.0, 40 * plan.handler)
    return Fleet(replace(plan, way=way, cores=cores), costs).run(seconds, warm=max(0.2, 2 * plan.handler))


def validate(costs: Costs, way: float, jobs: int, rounds: int) -> tuple[list[str], bool]:
    """Compares predictions with real runs; returns rows of a table, and whether all are near enough."""
    rows, fine = [], True
    for plan in SHAPES:
        real, _ = best(plan, jobs if plan.handler else 4 * jobs, rounds)
        said = predict(plan, costs, way)
        off = said.throughput / real.throughput - 1
        load = real.server * real.throughput / plan.masters
        fine = fine and abs(off) <= WITHIN and abs(said.server_load - load) <= max(WITHIN * load, LIGHT)
        rows.append(
            f"| {plan.workers} × {plan.concurrency} | {plan.masters} | {plan.handler * 1000:g} "
            f"| {real.throughput:,.0f} "
            f"| {said.throughput:,.0f} | {off:+.0%} | {load:.0%} | {said.server_load:.0%} "
            f"| {real.calls:.3f} | {said.calls:.3f} |"
        )
        print(rows[-1], flush=True)
    return rows, fine


def check_waits(costs: Costs, way: float) -> tuple[list[str], bool]:
    """Compares predicted waits with real ones; returns rows of a table, and whether all are near enough."""
    rows, fine = [], True
    for plan, jobs in WAITS:
        assert plan.rate is not None
        real = waits(plan, jobs)
        said = Fleet(replace(plan, way=way, cores=2), costs, SEED).run(jobs / plan.rate, warm=1e-9)
        mean, half, most = sum(real) / len(real), real[len(real) // 2], real[len(real) * 9 // 10]
        off = said.wait_mean / mean - 1
        fine = fine and abs(off) <= WITHIN
        rows.append(
            f"| {plan.workers} × {plan.concurrency} | {plan.handler * 1000:g} | {plan.rate:g} "
            f"| {mean * 1000:.1f} | {said.wait_mean * 1000:.1f} | {off:+.0%} "
            f"| {half * 1000:.0f} | {said.wait_p50 * 1000:.0f} "
            f"| {most * 1000:.0f} | {said.wait_p90 * 1000:.0f} |"
        )
        print(rows[-1], flush=True)
    return rows, fine


def draw(costs: Costs, folder: Path) -> dict[str, float]:
    """Draws the plots of the page; returns figures for its text."""
    way, handler = 0.0005, 0.01
    crews = (1, 3, 10, 30, 100, 300, 1000)
    grown = {}
    for masters in (1, 10, 30, 100):
        plans = [
            Plan(workers=crew, masters=masters, handler=handler, way=way, parts=1)
            for crew in crews
            if crew >= masters / 10
        ]
        grown[f"{masters} master{'s' * (masters > 1)}"] = [
            (float(plan.workers), Fleet(plan, costs).run(0.2, _full(plan, costs)).throughput)
            for plan in plans
        ]
    (folder / "scaling-throughput.svg").write_text(
        curves(
            "Throughput by workers and masters, handlers of 10 ms",
            grown,
            across="workers, 100 slots each",
            up="jobs per second",
            log=(True, True),
        )
    )
    full = 1 / (costs.server_call / 50 + costs.server_job + costs.server_add)
    waits = {}
    for crew in (10, 30):
        plans = [
            Plan(workers=crew, rate=full * part, handler=handler, way=way)
            for part in (0.1, 0.3, 0.5, 0.7, 0.8, 0.9)
        ]
        found = [(plan, Fleet(plan, costs).run(2.0)) for plan in plans]
        for what in ("wait_p50", "wait_p99"):
            waits[f"{crew} workers, {what[5:]}"] = [
                ((plan.rate or 0) / full * 100, max(0.01, getattr(one, what) * 1000)) for plan, one in found
            ]
    (folder / "scaling-wait.svg").write_text(
        curves(
            "Wait before a claim on one master",
            waits,
            across="rate, % of what full batches would allow",
            up="ms",
            log=(False, True),
        )
    )
    million = crews_on_masters(costs, way)
    (folder / "scaling-million.svg").write_text(
        curves(
            "Throughput of handlers that return at once, adds included",
            million,
            across="masters",
            up="jobs per second",
            log=(False, True),
        )
    )
    return {
        "per_master": full,
        "per_worker": 1 / (costs.worker_job + costs.worker_call / 50),
        "masters": 1e6 / full,
        "workers": 1e6 * (costs.worker_job + costs.worker_call / 50),
    }


def crews_on_masters(
    costs: Costs,
    way: float,
    crews: Sequence[int] = (10, 30, 100, 300),
    masters: Sequence[int] = (1, 4, 10, 20, 30, 50, 75, 100),
) -> dict[str, list[tuple[float, float]]]:
    """Simulates handlers that return at once, with every job added too: jobs a second by masters."""
    added = replace(costs, server_job=costs.server_job + costs.server_add)

    def throughput(plan: Plan) -> float:
        return Fleet(plan, added).run(0.2, _full(plan, added)).throughput

    return {
        f"{workers} workers": [
            (float(many), throughput(Plan(workers=workers, masters=many, way=way))) for many in masters
        ]
        for workers in crews
    }


def _full(plan: Plan, costs: Costs) -> float:
    """Returns the seconds after which all slots have had a job."""
    filling = plan.workers * plan.concurrency / plan.masters * (costs.server_call / 50 + costs.server_job)
    return 0.1 + 2 * filling + 2 * plan.handler


def write(page: Path, parts: dict[str, str]) -> None:
    """Replaces the parts of the page between marks."""
    text = page.read_text()
    for name, body in parts.items():
        start, end = f"<!-- {name} -->\n", "<!-- end -->"
        assert text.count(start) == 1, f"{page} must have one part {name}"
        before, _, rest = text.partition(start)
        text = f"{before}{start}{body}\n{end}{rest.partition(end)[2]}"
    page.write_text(text)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=6_000, help="of each real run")
    parser.add_argument("--rounds", type=int, default=5, help="of each real run; the fastest counts")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "scaling.md")
    parser.add_argument("--check", action="store_true", help="exit 1 when a prediction is off by over 20 %%")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        url, concurrency, handler = args.work
        asyncio.run(work(url, int(concurrency), float(handler)))
        return 0
    costs, way = calibrate(args.jobs, args.rounds)
    us = {name: getattr(costs, name) * 1e6 for name in costs.__dataclass_fields__} | {"way": way * 1e6}
    print({name: round(value, 1) for name, value in us.items()}, flush=True)
    rows, fine = validate(costs, way, args.jobs, args.rounds)
    waited, also_fine = check_waits(costs, way)
    fine = fine and also_fine
    figures = draw(costs, args.page.parent)
    table = "\n".join(f"| {name.replace('_', ', ')} | {value:,.1f} |" for name, value in us.items())
    checked = (
        "| workers × slots | masters | handler ms | jobs/s | predicted | off | server load | predicted "
        "| calls per job | predicted |\n|---|---|---|---|---|---|---|---|---|---|\n" + "\n".join(rows)
    )
    late = (
        "| workers × slots | handler ms | jobs/s added | mean wait ms | predicted | off | median | predicted "
        "| 9 of 10 | predicted |\n|---|---|---|---|---|---|---|---|---|---|\n" + "\n".join(waited)
    )
    said = (
        f"With full batches a master takes {figures['per_master']:,.0f} jobs a second, adds included, and\n"
        f"a worker process {figures['per_worker']:,.0f} whose handlers return at once. "
        "A million such jobs a second takes at least\n"
        f"{figures['masters']:,.0f} masters and {figures['workers']:,.0f} worker processes."
    )
    write(
        args.page,
        {"costs": f"| cost | µs |\n|---|---|\n{table}", "checked": checked, "waits": late, "million": said},
    )
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build" / "scaling.json").write_text(json.dumps(us | figures, indent=2))
    return 1 if args.check and not fine else 0


if __name__ == "__main__":
    sys.exit(main())
