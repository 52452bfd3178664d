"""Measures the pipeline as ratios in one run: ingest against a plain loop, the sink against ``add_many``.

    python -m benchmarks.pipeline [--events 1000000] [--jobs 50000] [--seconds 300] [--rate 1000] [--check]

Everything is measured warm, against the same private server, one after another:

- ingest: one process that reads pages by XRANGE and writes Parquet, and the pipeline's bronze, from the start
  of the query to its end;
- day: all tables of the ingested day. One job in twenty is retried and one in a hundred fails; every attempt
  has its record, so there are a quarter more rows than events;
- sink: ``Queue.add_many`` from plain Python, and ``df.write.format("oxcart")``;
- live: a producer, a worker and ``pipeline run`` at a steady rate on the same machine. It measures the age of
  the newest row of bronze, the age of the newest settled minute, and the memory of driver, JVM and Python
  workers, twice a second, from the first tables on.

Each part prints its wall-clock seconds by step, and its CPU seconds by kind of process. The JVM's compilation
is a separate kind.

``--check`` exits with 1 if a bound is missed; ``--seconds 0`` skips the live part.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tests.servers import ValkeyServer, wait_until

from benchmarks.days import fill
from benchmarks.processes import Profile, resident_mb
from oxcart import Queue, Worker
from oxcart.broker.export import ATTEMPTS, EVENTS
from oxcart.spark.lake.bronze import BRONZE, write_rows
from oxcart.spark.lake.tables import Tables
from oxcart.spark.lake.versions import File, Lake
from oxcart.spark.options import QueueSelection, ServerAddress
from oxcart.spark.read.attachment import attach
from oxcart.spark.read.connection import Connection, stream_key
from oxcart.spark.read.entries import page_rows
from oxcart.spark.read.position import Position
from oxcart.spark.read.stream import Page, Piece
from oxcart.spark.session import SETTINGS, open_session

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: The bounds of the figures. Memory is the ratio of the maxima of the second and the first half of the live
#: part.
FLOORS = {"ingest": 0.60, "sink": 0.75, "live_rate": 0.95}
CEILINGS = {"day_seconds": 60.0, "bronze_age_s": 5.0, "minute_age_s": 60.0, "memory_growth": 1.25}
#: The live part is measured after this many seconds and the first tables: until then the JVM compiles. A
#: pipeline without tables after the longer time is measured anyway, with a newest minute as old as the load.
WARM_SECONDS = 45.0
WARM_MOST = 240.0
#: Events of the day that is ingested and built before the measurement.
WARM_EVENTS = 100_000


def plain_ingest(address: ServerAddress, queue: str, lake: Lake) -> int:
    """Writes pages to Parquet in one process, like a task of the pipeline."""
    rows = 0
    with Connection(address) as connection:
        for suffix in (EVENTS, ATTEMPTS):
            stream = connection.stream(stream_key(queue, suffix))
            pages = stream.read(Piece(Position(life=1), stream.end()))
            batches = (page_rows(cast(Page, page), queue, suffix) for page in pages)
            rows += sum(one.file.rows for one in write_rows(lake, batches))
    return rows


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Returns the seconds of a call and its result."""
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def measure_ingest(spark: SparkSession, server: ValkeyServer, folder: Path, events: int) -> dict[str, float]:
    """Measures bronze against a plain loop, and the build of the day."""
    from oxcart.spark.pipeline import Pipeline, Plan

    address = ServerAddress(url=server.url)
    fill(server, "warm", max(4000, min(WARM_EVENTS, events)))
    fill(server, "q", events)
    warm = Pipeline(spark, Plan(folder / "warm", address, QueueSelection(("warm",)), samples=False))
    warm.once()
    with Profile("plain loop"):
        seconds, rows = timed(lambda: plain_ingest(address, "q", Lake(folder / "plain")))
    found = {"plain_rows_per_s": rows / seconds}
    pipeline = Pipeline(spark, Plan(folder / "lake", address, QueueSelection(("q",)), samples=False))
    with Profile("ingest") as profile:
        began = time.perf_counter()
        query = pipeline.start(once=True)
        query.awaitTermination()
        seconds = time.perf_counter() - began
        profile.steps = batch_steps(query, seconds)
    written = sum(file.rows for file in pipeline.lake.head().of(BRONZE))
    assert written == rows, f"the plain loop has {rows} rows, bronze {written}"
    found["ingest_rows_per_s"] = rows / seconds
    found["ingest"] = found["ingest_rows_per_s"] / found["plain_rows_per_s"]
    with Profile("day") as profile:
        pipeline.builder._tables = watched = Watched(spark, pipeline.lake)
        found["day_seconds"], _ = timed(pipeline.builder.refresh)
        profile.steps = {**watched.seconds, "the rest": found["day_seconds"] - sum(watched.seconds.values())}
    with server.client() as store:
        store.flushall()
    return found


class Watched(Tables):
    """Tables that record the time of each build and write."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        super().__init__(spark, lake)
        self.seconds: dict[str, float] = {}

    def write(
        self,
        rows: DataFrame,
        table: str,
        pending: Column | bool | None = None,
        *,
        streams: Iterable[str] | None = None,
        parts: int | None = None,
    ) -> list[File]:
        """Writes and records the time."""
        began = time.perf_counter()
        files = super().write(rows, table, pending, streams=streams, parts=parts)
        self.seconds[table] = time.perf_counter() - began
        return files


def batch_steps(query: StreamingQuery, seconds: float) -> dict[str, float]:
    """Returns the seconds of a query by step, as Spark reports them."""
    steps = {"plan": 0.0, "tasks and publishing": 0.0, "checkpoint": 0.0}
    names = {"latestOffset": "plan", "addBatch": "tasks and publishing"}
    for progress in query.recentProgress:
        for name, millis in progress["durationMs"].items():
            if name != "triggerExecution":
                steps[names.get(name, "checkpoint")] += millis / 1000
    return {**steps, "start and end of the query": seconds - sum(steps.values())}


def measure_sink(spark: SparkSession, server: ValkeyServer, jobs: int) -> dict[str, float]:
    """Measures the sink against ``add_many``."""
    rows = [("n", {"i": i}, {"job_id": f"p-{i}"}) for i in range(jobs)]

    async def add() -> None:
        async with Queue("plain", url=server.url) as queue:
            await queue.add_many(rows)

    def write(queue: str, count: int) -> None:
        df = spark.range(count).withColumnRenamed("id", "i")
        writer = df.write.format("oxcart").option("url", server.url).option("queue", queue)
        writer.option("name", "n").option("key", "i").mode("append").save()

    write("warm", 2000)
    seconds, _ = timed(lambda: asyncio.run(add()))
    found = {"add_many_per_s": jobs / seconds}
    seconds, _ = timed(lambda: write("sink", jobs))
    found["sink_per_s"] = jobs / seconds
    found["sink"] = found["sink_per_s"] / found["add_many_per_s"]
    with server.client() as store:
        store.flushall()
    return found


async def produce(url: str, rate: int) -> None:
    """Adds jobs at a steady rate until its input ends; prints their number and the seconds."""
    began, added = time.monotonic(), 0
    async with Queue("live", url=url) as queue:
        ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        while not ended.done():
            passed = time.monotonic() - began
            due = int(passed * rate) - added
            if due:
                await queue.add_many([("n", {"i": added + i}) for i in range(due)])
                added += due
            await asyncio.sleep(0.05)
    print(added, passed, flush=True)


async def serve(url: str) -> None:
    """Runs the jobs until its input ends."""
    async with Queue("live", url=url) as queue:

        @queue.job(name="n")
        async def run(i: int) -> int:
            return i

        async with Worker(queue, concurrency=50).running():
            await asyncio.to_thread(sys.stdin.read)


def measure_live(
    spark: SparkSession, server: ValkeyServer, folder: Path, seconds: float, rate: int
) -> dict[str, float]:
    """Measures the age of bronze and minutes, and the memory, while jobs run."""
    from oxcart.spark.build.notes import Ledger
    from oxcart.spark.lake.columns import BUILDS
    from oxcart.spark.pipeline import Pipeline, Plan

    address = ServerAddress(url=server.url)
    asyncio.run(_touch(server.url))
    assert attach(address, "live", "main") is not None
    plan = Plan(folder / "live", address, QueueSelection(("live",)), spool=folder / "spool")
    pipeline = Pipeline(spark, plan)
    ledger = Ledger(pipeline.lake)
    me = [sys.executable, "-m", "benchmarks.pipeline", "--url", server.url]
    worker = subprocess.Popen([*me, "--role", "serve"], stdin=subprocess.PIPE)
    done = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            pipeline.run(20.0, until=done.is_set)
        except BaseException as error:
            failed.append(error)

    running = threading.Thread(target=run, name="pipeline")
    bronze, minutes, memory = list[float](), list[float](), list[float]()
    producer = subprocess.Popen(
        [*me, "--role", "produce", "--rate", str(rate)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        running.start()
        with server.client() as store:
            wait_until(lambda: int(store.zcard("bull:live:completed")) > 1, "jobs are added and run", 120)
        began, began_ms = time.monotonic(), time.time() * 1000
        warm = 0.0
        while (
            not failed and producer.poll() is None and (len(memory) < 2 or time.monotonic() - warm < seconds)
        ):
            time.sleep(0.5)
            head, now = pipeline.lake.head(), time.time() * 1000
            noted = [ledger.look(head).of(day) for day in head.days(BUILDS)]
            marks, built = head.marks, [of_day["live"] for of_day in noted if "live" in of_day]
            passed = time.monotonic() - began
            if not warm and passed >= WARM_SECONDS and (built or passed >= WARM_MOST):
                warm = time.monotonic()
            if not warm:
                continue
            at = marks.get("ingest:main", {}).get("live", {}).get("id", "0-0")
            bronze.append((now - max(began_ms, int(at.partition("-")[0]))) / 1000)
            through = max((day.through for day in built), default=0)
            minutes.append((now - max(began_ms, through)) / 1000)
            memory.append(resident_mb())
        slowest = slowest_batch(spark)
        added, passed = map(float, producer.communicate(timeout=120)[0].split())
        with server.client() as store:
            wait_until(
                lambda: not store.exists("bull:live:wait", "bull:live:active"), "all jobs have run", 120
            )
    finally:
        done.set()
        running.join(120)
        for process in (worker, producer):
            if process.stdin is not None:
                process.stdin.close()
            process.wait(120)
    if failed:
        raise failed[0]
    with server.client() as store:
        wanted = store.xinfo_stream("bull:live:events")["entries-added"]
    pipeline.once()
    rows = sum(file.rows for file in pipeline.lake.head().of("events"))
    found = pipeline.query("select count(*) as n from jobs where state = 'completed'").collect()[0].n
    assert found == added + 1, f"{added:.0f} jobs were added and one before, {found} are in the table"
    assert rows >= wanted, f"{wanted} events were written, bronze has {rows} rows"
    print(f"live:\n    slowest batch: {slowest}", flush=True)
    half = len(memory) // 2
    return {
        "live_jobs": added,
        "live_rate": added / (passed * rate),
        "warm_s": warm - began,
        "bronze_age_s": max(bronze),
        "bronze_age_p50_s": sorted(bronze)[len(bronze) // 2],
        "minute_age_s": max(minutes),
        "memory_mb": max(memory),
        "memory_growth": max(memory[half:]) / max(memory[:half]),
    }


def slowest_batch(spark: SparkSession) -> str:
    """Returns the steps of the slowest of the last hundred batches."""
    batches = [one["durationMs"] for query in spark.streams.active for one in query.recentProgress]
    batches.sort(key=lambda steps: steps.get("triggerExecution", 0))
    if not batches:
        return "none"
    slowest = ", ".join(f"{name} {millis / 1000:.1f}" for name, millis in batches[-1].items() if millis >= 50)
    median = batches[len(batches) // 2].get("triggerExecution", 0) / 1000
    return f"{slowest} s; the median of all {median:.1f} s"


async def _touch(url: str) -> None:
    """Creates the queue, because `attach` needs one; a queue that is only paused is gone after a resume."""
    async with Queue("live", url=url) as queue:
        await queue.add("n", {"i": -1})


def main() -> int:
    """Measures and prints; writes build/pipeline.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--role", choices=["produce", "serve"])
    parser.add_argument("--url")
    asked = parser.parse_args()
    if asked.role:
        asyncio.run(serve(asked.url) if asked.role == "serve" else produce(asked.url, asked.rate))
        return 0
    found: dict[str, float] = {}
    with ValkeyServer() as server, tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        # An idle compiler thread that ends would drop its CPU seconds.
        options = f"{SETTINGS['spark.driver.extraJavaOptions']} -XX:-UseDynamicNumberOfCompilerThreads"
        spark = open_session(asked.master, settings={"spark.driver.extraJavaOptions": options})
        if asked.events:
            found |= measure_ingest(spark, server, folder, asked.events)
        if asked.jobs:
            found |= measure_sink(spark, server, asked.jobs)
        if asked.seconds:
            found |= measure_live(spark, server, folder, asked.seconds, asked.rate)
        spark.stop()
    missed = False
    for name, value in found.items():
        verdict = ""
        if name in FLOORS:
            verdict, bad = f" at least {FLOORS[name]:g}", value < FLOORS[name]
        elif name in CEILINGS:
            verdict, bad = f" at most {CEILINGS[name]:g}", value > CEILINGS[name]
        if verdict:
            verdict += ": MISSED" if bad else ": held"
            missed |= bad
        print(f"{name:>20} {value:12,.2f}{verdict}")
    target = Path("build")
    target.mkdir(exist_ok=True)
    (target / "pipeline.json").write_text(json.dumps(found, indent=2))
    return 1 if missed and asked.check else 0


if __name__ == "__main__":
    sys.exit(main())
