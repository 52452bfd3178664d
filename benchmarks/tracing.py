"""What traces cost: ``make bench-tracing``.

Each mode adds jobs and runs them in one process, in interleaved rounds of which the medians count:

    off       a queue without tracing
    api       tracing without an SDK: contexts are carried, nothing is recorded
    sampled   an SDK that samples 1 % of the traces, as busy services do
    all       an SDK that records and exports every span: add, wait, claim, process

    python -m benchmarks.tracing [--rounds 7] [--jobs 6000] [--handler 0] [--instructions] [--check]

Jobs per second of wall time and of the client's CPU time are printed. On a shared machine the second is the
one to compare: a worker with empty handlers waits for nothing but its own CPU.

``--handler 1`` lets each handler wait for 1 ms, like a call of a cache. ``--instructions`` counts the
client's instructions per job by valgrind instead: they repeat on a shared machine. ``--check`` fails when a
sampled trace costs more than 15 % of the throughput.
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
#: The part of its throughput that a worker may lose to traces.
BAR = 0.15
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
    return Tracing(tracer_provider=provider)


async def work(url: str, mode: str, jobs: int, handler_ms: float) -> Taken:
    """Adds jobs, a hundred at a time, and runs them."""
    from oxcart import Queue, Worker

    async def handle() -> None:
        if handler_ms:
            await asyncio.sleep(handler_ms / 1000)

    data = {"text": "x" * 80, "n": 1}
    async with Queue("traced", url=url, tracing=tracing_of(mode)) as queue:
        queue.fallback(handle)
        began = _now()
        for _ in range(jobs // CONCURRENCY):
            await asyncio.gather(*(queue.add("job", data) for _ in range(CONCURRENCY)))
        added = _now()
        worker = Worker(queue, concurrency=CONCURRENCY)
        running = asyncio.create_task(worker.run())
        while worker.processed < jobs and not running.done():
            await asyncio.wait((running,), timeout=0.005)
        ended = _now()
        worker.stop()
        await running
    return Taken(added[0] - began[0], ended[0] - added[0], added[1] - began[1], ended[1] - added[1])


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def run(url: str, mode: str, jobs: int, handler_ms: float, *prefix: str) -> Taken:
    """Runs the work in a process of its own, behind a command such as valgrind's."""
    arguments = ["--work", mode, "--url", url, "--jobs", str(jobs), "--handler", str(handler_ms)]
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


def instructions(handler_ms: float) -> dict[str, float]:
    """The client's instructions per job, added and processed, as slopes."""
    from tests.servers import ValkeyServer

    per_job = {}
    for mode in MODES:
        counts = []
        for jobs in (FEW, MANY):
            with tempfile.TemporaryDirectory() as folder, ValkeyServer() as server:
                output = Path(folder) / "callgrind.out"
                run(server.url, mode, jobs, handler_ms, *_callgrind(output))
                counts.append(_total(output))
        per_job[mode] = (counts[1] - counts[0]) / (MANY - FEW)
    return per_job


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=6_000)
    parser.add_argument("--handler", type=float, default=0, help="ms that each handler waits")
    parser.add_argument("--instructions", action="store_true", help="count instead of timing")
    parser.add_argument("--check", action="store_true", help="exit 1 when sampled traces cost too much")
    parser.add_argument("--work", choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        print(json.dumps(asyncio.run(work(arguments.url, arguments.work, arguments.jobs, arguments.handler))))
        return 0
    if arguments.instructions:
        for mode, count in (counted := instructions(arguments.handler)).items():
            print(f"{mode:>8}: {count:>10,.0f} instructions per job, {count / counted['off'] - 1:+.1%}")
        return 0
    found = rounds(arguments.rounds, arguments.jobs, arguments.handler)
    for mode, taken in found.items():
        rates = zip(("adds/s", "jobs/s", "adds/CPU s", "jobs/CPU s"), taken, found["off"], strict=True)
        shown = (f"{arguments.jobs / one:>7,.0f} {unit} ({off / one - 1:+.1%})" for unit, one, off in rates)
        print(f"{mode:>8}: {', '.join(shown)}", flush=True)
    off, sampled = found["off"].process_cpu, found["sampled"].process_cpu
    return 0 if off / sampled >= 1 - BAR or not arguments.check else 1


if __name__ == "__main__":
    raise SystemExit(main())
