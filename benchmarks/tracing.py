"""What traces cost: ``make bench-tracing``.

Each mode adds jobs and runs them in one process, in interleaved rounds of which the medians count:

    off       a queue without tracing
    api       tracing without an SDK: contexts are carried, nothing is recorded
    sampled   an SDK that samples 1 % of the traces, as busy services do
    all       an SDK that records and exports every span: add, wait, claim, process

    python -m benchmarks.tracing [--rounds 7] [--jobs 6000] [--handler 0] [--instructions | --calls] [--check]

Jobs per second of wall time and of the client's CPU time are printed. On a shared machine the second is the
one to compare: a worker with empty handlers waits for nothing but its own CPU.

``--handler 1`` lets each handler wait for 1 ms, like a call of a cache. ``--instructions`` counts the
client's instructions per add and per attempt by valgrind instead: they repeat on a shared machine.
``--calls`` counts the calls of Python and of C per job. ``--check`` fails when a figure exceeds its bar in
`BARS`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.instructions import ROOT, _callgrind, _total

MODES = ("off", "api", "sampled", "all")
#: How much more an add and an attempt with an empty handler may take than without traces. A worker keeps the
#: promise of 15 % while few traces are sampled. The other bars are what docs/tracing.md says, with some room.
BARS = {
    "api": (0.35, 0.15),
    "sampled": (0.60, 0.15),
    "all": (4.00, 4.00),
}
CONCURRENCY = 100
FEW, MANY = 400, 1_200


class Taken(NamedTuple):
    """Seconds of wall time and of CPU time that the adds and the runs took."""

    add: float
    process: float
    add_cpu: float
    process_cpu: float


def tracing_of(mode: str) -> Any:
    """Returns the tracing of a mode, with the SDK's batches and an exporter that drops them.

    Every mode imports the same: the collector of garbage visits what is imported, traces or not.
    """
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, TraceIdRatioBased

    from oxcart.observe.tracing import Tracing

    if mode == "off":
        return None
    if mode == "api":
        return Tracing()

    class Nowhere(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return SpanExportResult.SUCCESS

        def shutdown(self) -> None:
            pass

    sampler = ParentBased(TraceIdRatioBased(0.01)) if mode == "sampled" else ALWAYS_ON
    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    # The first export of a process costs as much as many jobs: a short run must not count it to them.
    warm = TracerProvider()
    warm.add_span_processor(BatchSpanProcessor(Nowhere()))
    warm.get_tracer("warm").start_span("warm").end()
    warm.shutdown()
    return Tracing(tracer_provider=provider)


async def work(url: str, mode: str, jobs: int, handler_ms: float, step: str) -> Taken:
    """Adds jobs, a hundred at a time, and runs them.

    With the step ``add`` it only adds. With ``calls`` it returns calls of Python and of C, each for adds and
    attempts.
    """
    from oxcart import Queue, Worker

    async def handle() -> None:
        if handler_ms:
            await asyncio.sleep(handler_ms / 1000)

    data = {"text": "x" * 80, "n": 1}
    seen = {"call": 0, "c_call": 0}
    if step == "calls":

        def profile(frame: Any, event: str, argument: Any) -> None:
            if event in seen:
                seen[event] += 1

        sys.setprofile(profile)
    async with Queue("traced", url=url, tracing=tracing_of(mode)) as queue:
        queue.fallback(handle)
        began = _now()
        for _ in range(jobs // CONCURRENCY):
            await asyncio.gather(*(queue.add("job", data) for _ in range(CONCURRENCY)))
        added, called = _now(), tuple(seen.values())
        if step == "add":
            return Taken(added[0] - began[0], 0, added[1] - began[1], 0)
        worker = Worker(queue, concurrency=CONCURRENCY)
        running = asyncio.create_task(worker.run())
        while worker.processed < jobs and not running.done():
            await asyncio.wait((running,), timeout=0.005)
        ended = _now()
        worker.stop()
        await running
    if step == "calls":
        sys.setprofile(None)
        both = tuple(seen.values())
        return Taken(called[0], both[0] - called[0], called[1], both[1] - called[1])
    return Taken(added[0] - began[0], ended[0] - added[0], added[1] - began[1], ended[1] - added[1])


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def run(url: str, mode: str, jobs: int, handler_ms: float, *prefix: str, step: str = "both") -> Taken:
    """Runs the work in a process of its own, behind a command such as valgrind's."""
    arguments = ["--work", mode, "--url", url, "--jobs", str(jobs), "--handler", str(handler_ms)]
    arguments += ["--step", step]
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "benchmarks.tracing", *arguments],
        env=os.environ | {"PYTHONHASHSEED": "0"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{mode}: {done.stderr}")
    return Taken(*json.loads(done.stdout))


def rounds(count: int, jobs: int, handler_ms: float) -> dict[str, Taken]:
    """Seconds of each mode, as medians of interleaved rounds."""
    from tests.servers import ValkeyServer

    taken: dict[str, list[Taken]] = {mode: [] for mode in MODES}
    with ValkeyServer() as server:
        client = server.client()
        for _ in range(count):
            for mode in MODES:
                client.flushall()
                taken[mode].append(run(server.url, mode, jobs, handler_ms))
        client.close()
    return {mode: Taken(*map(statistics.median, zip(*found, strict=True))) for mode, found in taken.items()}


class Cost(NamedTuple):
    """What an add and an attempt cost."""

    add: float
    process: float


def instructions(handler_ms: float) -> dict[str, Cost]:
    """The client's instructions per add and per attempt, as slopes."""
    return {
        mode: Cost(add, both - add)
        for mode in MODES
        for add, both in [[_slope(mode, handler_ms, step) for step in ("add", "both")]]
    }


def _slope(mode: str, handler_ms: float, step: str) -> float:
    from tests.servers import ValkeyServer

    counts = []
    for jobs in (FEW, MANY):
        with tempfile.TemporaryDirectory() as folder, ValkeyServer() as server:
            output = Path(folder) / "callgrind.out"
            run(server.url, mode, jobs, handler_ms, *_callgrind(output), step=step)
            counts.append(_total(output))
    return (counts[1] - counts[0]) / (MANY - FEW)


def calls() -> dict[str, tuple[Cost, Cost]]:
    """The calls of Python, and those of C, per add and per attempt of the client's main thread, as slopes."""
    from tests.servers import ValkeyServer

    found = {}
    for mode in MODES:
        counts = []
        for jobs in (FEW, MANY):
            with ValkeyServer() as server:
                counts.append(run(server.url, mode, jobs, 0, step="calls"))
        python, c = (
            Cost(*((many - few) / (MANY - FEW) for few, many in zip(*pair, strict=True)))
            for pair in ([one[:2] for one in counts], [one[2:] for one in counts])
        )
        found[mode] = python, c
    return found


def over(mode: str, costs: Cost, off: Cost) -> list[str]:
    """Names the bars that a mode does not keep."""
    bars = Cost(*BARS.get(mode, (0.0, 0.0)))
    return [
        f"{mode}: {what} takes {cost / base - 1:+.0%}, the bar is {bar:+.0%}"
        for what, cost, base, bar in zip(Cost._fields, costs, off, bars, strict=True)
        if mode != "off" and cost / base - 1 > bar
    ]


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=6_000)
    parser.add_argument("--handler", type=float, default=0, help="ms that each handler waits")
    parser.add_argument("--instructions", action="store_true", help="count instead of timing")
    parser.add_argument("--calls", action="store_true", help="count calls instead of timing")
    parser.add_argument("--check", action="store_true", help="exit 1 when traces cost more than their bars")
    parser.add_argument("--work", choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument("--step", choices=("add", "both", "calls"), default="both", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        print(json.dumps(asyncio.run(work(given.url, given.work, given.jobs, given.handler, given.step))))
        return 0
    if given.calls:
        for mode, (python, c) in calls().items():
            print(f"{mode:>8}: {python.add:.1f} calls of Python and {c.add:.1f} of C per add, ", end="")
            print(f"{python.process:.1f} and {c.process:.1f} per attempt", flush=True)
        return 0
    failed: list[str] = []
    if given.instructions:
        for mode, costs in (counted := instructions(given.handler)).items():
            parts = (
                f"{cost:>9,.0f} per {what} ({cost / off - 1:+.1%})"
                for what, cost, off in zip(("add", "attempt"), costs, counted["off"], strict=True)
            )
            print(f"{mode:>8}: {', '.join(parts)}")
            failed += over(mode, costs, counted["off"])
    else:
        found = rounds(given.rounds, given.jobs, given.handler)
        for mode, taken in found.items():
            rates = zip(("adds/s", "jobs/s", "adds/CPU s", "jobs/CPU s"), taken, found["off"], strict=True)
            shown = (f"{given.jobs / one:>7,.0f} {unit} ({off / one - 1:+.1%})" for unit, one, off in rates)
            print(f"{mode:>8}: {', '.join(shown)}", flush=True)
            off = found["off"]
            failed += over(mode, Cost(taken.add, taken.process), Cost(off.add, off.process))
            cpu = Cost(taken.add_cpu, taken.process_cpu)
            failed += [f"CPU, {one}" for one in over(mode, cpu, Cost(off.add_cpu, off.process_cpu))]
    if given.check:
        print(*failed, sep="\n", file=sys.stderr)
    return 1 if failed and given.check else 0


if __name__ == "__main__":
    raise SystemExit(main())
