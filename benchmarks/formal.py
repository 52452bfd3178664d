"""Measures the cost of the formal model: plain jobs against the commit before it, and jobs with all features.

Three systems take turns on one server: ``before`` (a checkout of the commit before the formal model),
``plain`` (this checkout, the same jobs) and ``formal`` (this checkout; every job with a timeout, an
idempotency key, tags and a history). Each measurement is a process that adds jobs and runs them with one
worker; both are timed. A figure is the median of the rounds' ratios, because the machine is shared.

    python -m benchmarks.formal [--rounds 7] [--jobs 10000] [--check]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
#: The last commit without the formal model.
BEFORE = "840a8dd"
FLOORS = {"plain / before": 0.9, "formal / plain": 0.5}
CONCURRENCY = 100


async def measure(url: str, kind: str, jobs: int) -> dict[str, float]:
    """Adds and runs jobs; returns the seconds of each. It uses only what the older commit has too."""
    from oxcart import Queue, Worker

    async def nothing() -> None:
        pass

    def rows(prefix: str, count: int) -> list[Any]:
        data = {"text": "x" * 80, "n": 1}
        if kind != "formal":
            return [("job", data) for _ in range(count)]
        options = {"timeout": 60, "tags": {"tenant": "acme", "kind": "bench"}, "history": True}
        return [("job", data, {**options, "idempotency_key": f"{prefix}{number}"}) for number in range(count)]

    async def work(queue: Queue, count: int) -> float:
        began = time.perf_counter()
        worker = Worker(queue, concurrency=CONCURRENCY)
        running = asyncio.create_task(worker.run())
        while worker.processed < count and not running.done():
            await asyncio.wait((running,), timeout=0.005)
        took = time.perf_counter() - began
        worker.stop()
        await running
        return took

    async with Queue("warm", url=url) as warm:
        warm.fallback(nothing)
        await warm.add_many(rows("w", 1000))
        await work(warm, 1000)
    async with Queue("bench", url=url) as queue:
        queue.fallback(nothing)
        prepared = rows("b", jobs)
        began = time.perf_counter()
        handles = await queue.add_many(prepared)
        added = time.perf_counter() - began
        worked = await work(queue, jobs)
        assert len(handles) == jobs
        assert (await queue.counts())["completed"] == jobs
    return {"add": added, "work": worked}


def checkout(commit: str) -> Path:
    """Checks out another commit in ``build`` and returns its source."""
    # A branch moves: what it was the last time must not be taken for what it is.
    commit = subprocess.run(
        ["git", "rev-parse", "--verify", "--end-of-options", f"{commit}^{{commit}}"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout.strip()
    place = ROOT / "build" / f"before-{commit}"
    if not place.exists():
        place.mkdir(parents=True)
        archive = subprocess.run(
            ["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=True
        ).stdout
        subprocess.run(["tar", "-x", "-C", str(place)], input=archive, check=True)
    return place / "src"


def run_one(url: str, kind: str, jobs: int, source: Path) -> dict[str, float]:
    """Runs one measurement in a separate process."""
    environment = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}
    command = [
        sys.executable,
        "-m",
        "benchmarks.formal",
        "--measure",
        kind,
        "--url",
        url,
        "--jobs",
        str(jobs),
    ]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{kind}: {done.stderr}")
    taken: dict[str, float] = json.loads(done.stdout)
    return taken


def compare(rounds: int, jobs: int, before: str, check: bool) -> int:
    """Measures in turns and prints the figures; returns the exit code."""
    from tests.servers import ValkeyServer

    from benchmarks import cores

    spent: dict[str, list[float]] = {}
    sources = {"before": checkout(before), "plain": ROOT / "src", "formal": ROOT / "src"}
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in sources}
    with ValkeyServer() as server, cores.apart(server.pid):
        for number in range(rounds):
            for name, source in sources.items():
                client = server.client()
                client.flushall()
                before_cpu = _cpu(client)
                one = run_one(server.url, "formal" if name == "formal" else "plain", jobs, source)
                spent.setdefault(name, []).append((_cpu(client) - before_cpu) * 1e6 / jobs)
                client.close()
                taken[name].append(one)
                rates = ", ".join(f"{part} {jobs / seconds:,.0f}/s" for part, seconds in one.items())
                print(f"round {number + 1} {name:>7}: {rates}", flush=True)
    met = True
    results: dict[str, Any] = {}
    for name, floor in FLOORS.items():
        ours, theirs = name.split(" / ")
        for part in ("add", "work", "both"):
            ratios = [
                _seconds(two, part) / _seconds(one, part)
                for one, two in zip(taken[ours], taken[theirs], strict=True)
            ]
            ratio = statistics.median(ratios)
            results[f"{name} {part}"] = round(ratio, 3)
            verdict = ""
            if part == "both":
                met = met and ratio >= floor
                verdict = f"  (at least {floor:g}: {'met' if ratio >= floor else 'NOT MET'})"
            print(f"{name}, {part}: {ratio:.2f}{verdict}")
    for name, each in spent.items():
        # A busy machine changes CPU times least: of the server and the measured process, warm-up included.
        results[f"{name} us per job"] = round(statistics.median(each), 1)
        print(f"{name}: {statistics.median(each):.1f} us of CPU per job")
    output = ROOT / "build" / "bench-formal.json"
    output.write_text(json.dumps({"jobs": jobs, "rounds": taken, "ratios": results}, indent=2))
    return 0 if met or not check else 1


def _cpu(client: Any) -> float:
    """Seconds of CPU that the server and all measured processes so far have used."""
    info = client.info("cpu")
    ours = resource.getrusage(resource.RUSAGE_CHILDREN)
    server = float(info["used_cpu_user"]) + float(info["used_cpu_sys"])
    return server + ours.ru_utime + ours.ru_stime


def _seconds(one: dict[str, float], part: str) -> float:
    return sum(one.values()) if part == "both" else one[part]


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--before", default=BEFORE, help="the commit to compare plain jobs with")
    parser.add_argument("--check", action="store_true", help="exit 1 when a floor is not met")
    parser.add_argument("--measure", choices=["plain", "formal"], help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(asyncio.run(measure(arguments.url, arguments.measure, arguments.jobs))))
        return 0
    return compare(arguments.rounds, arguments.jobs, arguments.before, arguments.check)


if __name__ == "__main__":
    raise SystemExit(main())
