"""The workloads: their setup, their timed part, and the result of a round."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

from tests.servers import ValkeyServer

from benchmarks.measured import Measured, ServerClock
from benchmarks.systems import System

QUEUE = "bench"
#: Seconds between checks whether a system's last jobs are acknowledged.
_LOOK = 0.002


@dataclass(frozen=True)
class Sizes:
    """The sizes of the workloads.

    Attributes:
        jobs: Jobs of the bulk and processing workloads.
        singles: Jobs added one at a time.
        latencies: Jobs of the latency workload.
        warm: Jobs of a warm-up.
        concurrency: Of every worker but those of the latency workload, which have 1.
        pause: Seconds between two jobs of the latency workload.
        brief: Whether slow systems are given a part of the jobs to process, to save time.
    """

    jobs: int = 20_000
    singles: int = 5_000
    latencies: int = 500
    warm: int = 2_000
    concurrency: int = 100
    pause: float = 0.01
    brief: bool = False


@dataclass
class Round:
    """The result of one round of one system; None for figures that a workload lacks."""

    workload: str
    system: str
    version: str
    jobs: int
    seconds: float
    jobs_per_s: float
    server_us_per_job: float
    client_us_per_job: float
    script_us_per_job: float
    calls_per_job: float
    commands_per_job: dict[str, float]
    p50_ms: float | None = None
    p99_ms: float | None = None
    number: int = 0

    @property
    def words(self) -> str:
        latency = f", p50 {self.p50_ms:.3f} ms" if self.p50_ms is not None else ""
        return f"{self.system} {self.version}: {self.jobs_per_s:,.0f} jobs/s{latency}"

    def facts(self) -> dict[str, Any]:
        return asdict(self)


class Bench:
    """Runs workloads of systems on one server.

    Args:
        server: The server that all systems share.
        sizes: The sizes of the workloads.
        slow_port: The port of the slow link to the server.
    """

    def __init__(self, server: ValkeyServer, sizes: Sizes, slow_port: int | None = None) -> None:
        self._server = server
        self._sizes = sizes
        self._slow_port = slow_port
        self._client = server.client()

    async def run(self, workload: str, system: System) -> Round:
        """Runs one round on an empty server."""
        self._client.flushall()
        return await (WORKLOADS | FIELD)[workload](self, workload, system)

    # -- producers

    async def add(self, workload: str, system: System) -> Round:
        return await self._produce(workload, system, "add", self._sizes.singles)

    async def add_many(self, workload: str, system: System) -> Round:
        return await self._produce(workload, system, "add_many", self._sizes.jobs)

    async def _produce(self, workload: str, system: System, role: str, jobs: int) -> Round:
        jobs = max(1, round(jobs * system.share))
        async with self._started(system, [self._task(system, role, jobs)]) as producers:
            found = await self._measure(workload, system, producers, jobs)
        self._expect(system, "wait", jobs)
        return found

    # -- workers

    async def process(self, workload: str, system: System) -> Round:
        return await self._process(workload, system, workers=1)

    async def process_x2(self, workload: str, system: System) -> Round:
        return await self._process(workload, system, workers=2)

    async def process_slow(self, workload: str, system: System) -> Round:
        assert self._slow_port is not None, "the slow link is not running"
        return await self._process(workload, system, workers=1, port=self._slow_port)

    async def _process(
        self, workload: str, system: System, *, workers: int, port: int | None = None
    ) -> Round:
        jobs = max(1, round(self._sizes.jobs * system.share))
        if port is not None:
            jobs = max(1, round(jobs * system.slow_share))
        elif self._sizes.brief:
            jobs = max(1, round(jobs * system.brief_share))
        async with self._started(system, [self._task(system, "fill", jobs)]) as filling:
            filling[0].say("go")
            await filling[0].report()
        self._rename(system.parked, "{}", "parked:{}")
        tasks = [self._task(system, "work", jobs, port=port) for _ in range(workers)]
        async with self._started(system, tasks) as started:
            found = await self._measure(workload, system, started, jobs, working=True)
        self._expect(system, "completed", jobs)
        return found

    async def latency(self, workload: str, system: System) -> Round:
        jobs = self._sizes.latencies
        tasks = [self._task(system, "wait", jobs, concurrency=1), self._task(system, "pace", jobs)]
        async with self._started(system, tasks) as started:
            found = await self._measure(workload, system, started, jobs, judge=started[0])
        self._expect(system, "completed", jobs)
        return found

    # -- what they share

    def _task(
        self, system: System, role: str, jobs: int, *, port: int | None = None, concurrency: int | None = None
    ) -> dict[str, Any]:
        return {
            "role": role,
            "queue": QUEUE,
            "jobs": jobs,
            "port": port or self._server.port,
            "warm_port": self._server.port,
            "warm": max(1, round(self._sizes.warm * system.share)),
            "concurrency": concurrency or self._sizes.concurrency,
            "pause": self._sizes.pause,
        }

    @contextlib.asynccontextmanager
    async def _started(self, system: System, tasks: list[dict[str, Any]]) -> AsyncIterator[list[Measured]]:
        started: list[Measured] = []
        try:
            for task in tasks:
                started.append(await Measured.start(system, task))
            yield started
        finally:
            for one in started:
                await one.end()

    async def _measure(
        self,
        workload: str,
        system: System,
        started: list[Measured],
        jobs: int,
        judge: Measured | None = None,
        working: bool = False,
    ) -> Round:
        """Lets warm processes go and waits until all jobs are done.

        If there is a judge, its report alone counts; otherwise all reports are combined. If the server shows
        which work is acknowledged, all of it must be.
        """
        clock = ServerClock(self._client)
        clock.start()
        before = sum(one.cpu() for one in started)
        for one in started:
            one.say("go")
        if working:
            self._rename(system.parked, "parked:{}", "{}")
        reports = await _until_done([judge] if judge else started, jobs)
        last = max(one["last"] for one in reports)
        while working and system.unfinished and system.unfinished(self._client):
            await asyncio.sleep(_LOOK)
            last = time.time()
        spent = sum(one.cpu() for one in started) - before
        clock.stop()
        seconds = last - min(one["began"] for one in reports)
        mean = reports[0].get("mean_ms") if judge else None
        return Round(
            workload=workload,
            system=system.name,
            version=started[0].version,
            jobs=jobs,
            seconds=seconds,
            # One at a time with pauses between: the pauses are not the system's.
            jobs_per_s=1000 / mean if mean else jobs / seconds,
            server_us_per_job=clock.cpu / jobs * 1e6,
            client_us_per_job=spent / jobs * 1e6,
            script_us_per_job=clock.script / jobs * 1e6,
            calls_per_job=sum(clock.calls.get(name, 0) for name in ("eval", "evalsha")) / jobs,
            commands_per_job={name: round(calls / jobs, 4) for name, calls in sorted(clock.calls.items())},
            p50_ms=reports[0].get("p50_ms"),
            p99_ms=reports[0].get("p99_ms"),
        )

    def _rename(self, keys: tuple[str, ...], old: str, new: str) -> None:
        """Renames a queue away, or back."""
        with self._client.pipeline() as pipe:
            for key in keys:
                pipe.rename(old.format(key), new.format(key))
            pipe.execute()

    def _expect(self, system: System, state: str, jobs: int) -> None:
        """Checks on the server that the work was done."""
        if system.unfinished is not None:
            wanted, found = jobs if state == "wait" else 0, system.unfinished(self._client)
            if found != wanted:
                raise RuntimeError(f"{system.name}: {wanted} unfinished jobs expected, found {found}")
            return
        key = f"bull:{QUEUE}:{state}"
        found = self._client.llen(key) if state == "wait" else self._client.zcard(key)
        if found != jobs:
            raise RuntimeError(f"{jobs} jobs expected in {key}, found {found}")


async def _until_done(started: list[Measured], jobs: int) -> list[dict[str, Any]]:
    """Reads reports until their counts add up."""
    latest: dict[Measured, dict[str, Any]] = {}
    listening = {asyncio.create_task(one.report()): one for one in started}
    try:
        while sum(report["count"] for report in latest.values()) < jobs:
            done, _ = await asyncio.wait(listening, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                one = listening.pop(task)
                latest[one] = task.result()
                listening[asyncio.create_task(one.report())] = one
        return list(latest.values())
    finally:
        for task in listening:
            task.cancel()
        await asyncio.gather(*listening, return_exceptions=True)


WORKLOADS: dict[str, Callable[[Bench, str, System], Awaitable[Round]]] = {
    "add": Bench.add,
    "add_many": Bench.add_many,
    "process_c100": Bench.process,
    "process_c100_x2": Bench.process_x2,
    "latency": Bench.latency,
    "process_c100_10ms": Bench.process_slow,
}

#: The workloads of the field; separate names keep its rounds apart from those of the floors.
FIELD: dict[str, Callable[[Bench, str, System], Awaitable[Round]]] = {
    "field_add": Bench.add,
    "field_add_many": Bench.add_many,
    "field_process": Bench.process,
}
