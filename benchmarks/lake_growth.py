"""Measures what a refresh of silver and gold costs, and that it does not grow with what the lake has.

    python -m benchmarks.lake_growth [--only queues ingests attempts days count idle live] [--rounds 5]
                                     [--attempts 500000] [--copies 4 4] [--seconds 60] [--check]

Each question has two lakes, whose bronze is written by hand: a small one and a grown one. New jobs arrive in
both, and both are refreshed, one after the other, ``--rounds`` times after two rounds that are not measured.
Interleaved rounds see the same load of the machine. The figures are medians of CPU seconds of Python and the
JVM without its compilers, and of new files and commits; the ratio is that of CPU seconds.

- queues: 20 new jobs in each of 1 and of 100 queues;
- ingests: 50 new jobs after 4 and after 5 000 batches that were built from and are not compacted;
- attempts: 1 000 new jobs on an empty day and on a day of 200 000 attempts, or of ``--attempts``. With
  ``--copies 4 4`` the day is measured again with each settled file four times, and sixteen times: building
  8 000 000 attempts takes an hour, and a refresh that read settled rows would read the copies too;
- days: 20 new jobs in each of 100 queues, in a lake of one day and in one of 400 days. The earlier days have
  the files of the built one and notes of their own, because building them takes hours.

Three further figures have one lake each:

- count: wall-clock seconds of a new process that counts the rows of an empty table in DuckDB, in a lake of
  5 000 batches that are not compacted;
- idle: CPU seconds per second of a pipeline that runs while nothing happens;
- live: the same at 50 jobs a second in 4 queues, with this process as the producer.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from tests.servers import ValkeyServer, wait_until

from benchmarks.processes import cpu_seconds
from oxcart.broker.export import ATTEMPTS, EVENTS
from oxcart.spark.build.notes import Basis, Built, Ledger, write_notes
from oxcart.spark.lake.bronze import write_rows
from oxcart.spark.lake.columns import BUILDS
from oxcart.spark.lake.tables import TABLES
from oxcart.spark.lake.versions import Change, Lake
from oxcart.spark.options import QueueSelection, ServerAddress
from oxcart.spark.read.entries import rows_of
from oxcart.spark.session import SETTINGS, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: 2026-11-02, midnight.
MIDNIGHT = 1_793_577_600_000
#: The history ends here; new jobs are added after it.
EVENING = MIDNIGHT + 20 * 3_600_000
_CHUNK = 10_000
_WARM = 2

Row = dict[str, Any]


class Day:
    """A day of a queue in the making.

    Args:
        lake: The lake.
        queue: The queue.
    """

    def __init__(self, lake: Lake, queue: str) -> None:
        self._lake = lake
        self._queue = queue
        self._ordinal = self._jobs = 0
        self._random = random.Random(queue)

    def add(self, jobs: int, since: int, until: int, files: int = 1) -> None:
        """Publishes the bronze of jobs that begin evenly between two times, in so many files."""
        for at in range(files):
            begin = since + (until - since) * at // files
            end = since + (until - since) * (at + 1) // files
            share = jobs * (at + 1) // files - jobs * at // files
            made = write_rows(self._lake, self.batches(share, begin, end))
            self._lake.publish(Change("ingest", add=[one.file for one in made]))

    def batches(self, jobs: int, since: int, until: int) -> Iterator[Any]:
        """Yields the bronze of jobs that begin evenly between two times."""
        rows: list[Row] = []
        apart = max(1, (until - since) // max(1, jobs))
        for number in range(jobs):
            rows += self._life(since + number * apart)
            if len(rows) >= _CHUNK:
                yield rows_of(sorted(rows, key=lambda row: row["at_ms"]))
                rows = []
        if rows:
            yield rows_of(sorted(rows, key=lambda row: row["at_ms"]))

    def _life(self, at: int) -> Iterator[Row]:
        self._jobs += 1
        number, job = self._jobs, f"job-{self._jobs}"
        wait, run = self._random.randrange(1, 400), self._random.randrange(1, 3000)
        yield self._event(at, "added", job, name=f"n{number % 5}")
        yield self._event(at, "waiting", job)
        yield self._event(at + wait, "active", job, prev="waiting")
        end = at + wait + run
        failed = {"reason": f"user {number} is unknown at 10.0.0.{number % 256}"} if number % 20 == 0 else {}
        ended = self._event(end, "failed" if failed else "completed", job, prev="active", **failed)
        yield ended
        extra = f'{{"began":"{at + wait}","ended":"{end}","worker":"host:1:0","starts":"1"'
        extra += ',"category":"permanent"}' if failed else "}"
        record = {"kind": "entry", "life": 1, "job_id": job, "extra": extra, "name": f"n{number % 5}"}
        yield {
            **{name: ended[name] for name in ("day", "queue", "entry_id", "at_ms", "event")},
            **record,
            **failed,
            "stream": ATTEMPTS,
        }

    def _event(self, at: int, event: str, job: str, **fields: Any) -> Row:
        self._ordinal += 1
        return {
            "day": at // 86_400_000,
            "queue": self._queue,
            "stream": EVENTS,
            "kind": "entry",
            "life": 1,
            "ordinal": self._ordinal,
            "entry_id": f"{at}-{self._ordinal}",
            "at_ms": at,
            "event": event,
            "job_id": job,
            **fields,
        }


class Question(msgspec.Struct, frozen=True):
    """What grows, from what to what.

    Attributes:
        name: Its name.
        small: The sizes of the small lake: queues, ingests and attempts of the day.
        grown: The sizes of the grown lake.
        jobs: New jobs per queue and round.
        bound: The most that the grown lake may cost, as a multiple of the small one.
        days: Days of the grown lake; the small one has one.
    """

    name: str
    small: tuple[int, int, int]
    grown: tuple[int, int, int]
    jobs: int
    bound: float
    days: int = 1


QUESTIONS = (
    Question("queues", (1, 4, 100), (100, 4, 100), 20, 2.0),
    Question("ingests", (1, 4, 5_000), (1, 5_000, 5_000), 50, 1.2),
    Question("attempts", (1, 4, 100), (1, 4, 200_000), 1_000, 1.3),
    Question("days", (100, 4, 100), (100, 4, 100), 20, 1.2, days=400),
)


class Grown:
    """A lake with a history, which is refreshed round by round.

    Args:
        spark: The session.
        root: The lake's folder.
        sizes: Queues, ingests and attempts of the day.
        days: How many days it has.
    """

    def __init__(self, spark: SparkSession, root: Path, sizes: tuple[int, int, int], days: int = 1) -> None:
        from oxcart.spark.build.builder import Builder

        queues, ingests, attempts = sizes
        self._lake = Lake(root)
        self._days = [Day(self._lake, f"q{number}") for number in range(queues)]
        self._builder = Builder(spark, self._lake)
        self._round = 0
        for day in self._days:
            day.add(max(1, attempts // queues), MIDNIGHT, EVENING - 60_000, max(1, ingests // queues))
        self._builder.refresh()
        if days > 1:
            self._age(days)

    def _age(self, days: int) -> None:
        """Adds days before the day that was built: with its files, and notes that lead up to its notes."""
        head, stage = self._lake.head(), self._lake.staging()
        first = datetime.fromtimestamp(MIDNIGHT / 1000, UTC).date() - timedelta(days=days - 1)
        known = Ledger(self._lake).look(head).of(str(first + timedelta(days=days - 1)))
        made, before = [], ""
        for day in (str(first + timedelta(days=at)) for at in range(days - 1)):
            noted = {queue: Built(Basis(before, "", False), MIDNIGHT, "") for queue in known}
            made += write_notes(self._lake, day, noted)
            for file in head.files.values():
                if not file.pending and file.table != BUILDS:
                    link = stage / f"{Path(file.path).stem}-{day}.parquet"
                    os.link(self._lake.root / file.path, link)
                    made.append(self._lake.take(link, file.table, day))
            before = day
        stage.rmdir()
        old = head.of(BUILDS)
        noted = {
            queue: msgspec.structs.replace(one, basis=msgspec.structs.replace(one.basis, before=before))
            for queue, one in known.items()
        }
        made += write_notes(self._lake, old[0].day, noted)
        self._lake.publish(Change("age", add=made, remove=frozenset(file.path for file in old)))

    def copy(self, copies: int) -> None:
        """Makes each settled file of the day so many."""
        head, stage = self._lake.head(), self._lake.staging()
        made = []
        for file in head.files.values():
            if file.pending or file.table == BUILDS:
                continue
            for number in range(1, copies):
                link = stage / f"{Path(file.path).stem}-{number}.parquet"
                os.link(self._lake.root / file.path, link)
                made.append(self._lake.take(link, file.table, file.day))
        stage.rmdir()
        if made:
            self._lake.publish(Change("copy", add=made))

    def measure(self, jobs: int) -> tuple[float, float, float]:
        """Adds jobs to each queue and refreshes; returns CPU seconds, new files and commits."""
        begin = EVENING + self._round * 30_000
        self._round += 1
        # One batch of the stream has the entries of all queues.
        rows = (batch for day in self._days for batch in day.batches(jobs, begin, begin + 20_000))
        self._lake.publish(Change("ingest", add=[one.file for one in write_rows(self._lake, rows)]))
        before, versions, cpu = set(self._lake.head().files), self._commits(), _cpu()
        self._builder.refresh()
        spent = _cpu() - cpu
        return spent, len(self._lake.head().files.keys() - before), self._commits() - versions

    def _commits(self) -> int:
        return sum(self._lake.head().tables.values())


def ask(
    spark: SparkSession, folder: Path, question: Question, rounds: int, copies: Sequence[int] = ()
) -> Iterator[tuple[int, dict[str, float]]]:
    """Yields how often the grown lake has each settled file, the medians of both lakes, and their ratio."""
    lakes = {
        "small": Grown(spark, folder / "small", question.small),
        "grown": Grown(spark, folder / "grown", question.grown, question.days),
    }
    times = 1
    for more in (1, *copies):
        lakes["grown"].copy(more)
        times *= more
        yield times, _measured(lakes, question.jobs, rounds)


def _measured(lakes: Mapping[str, Grown], jobs: int, rounds: int) -> dict[str, float]:
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in lakes}
    for number in range(_WARM + rounds):
        for name, lake in lakes.items():
            one = lake.measure(jobs)
            if number >= _WARM:
                found[name].append(one)
    figures: dict[str, float] = {}
    for name, rows in found.items():
        for unit, column in zip(("cpu_s", "files", "commits"), zip(*rows, strict=True), strict=True):
            figures[f"{name}_{unit}"] = statistics.median(column)
        figures[f"{name}_least"] = min(row[0] for row in rows)
    return {**figures, "ratio": figures["grown_cpu_s"] / figures["small_cpu_s"]}


#: Figures with one lake each, and the most that they may be.
SINGLE = {"count": 1.0, "idle": 0.1, "live": 0.5}
_LIVE_QUEUES, _LIVE_RATE = 4, 50
#: Seconds after which a pipeline's pace is measured: until then the JVM compiles.
_WARM_SECONDS = 60.0


def count_seconds(folder: Path) -> float:
    """Returns the seconds of a process that counts an empty table beside 5 000 files of bronze."""
    lake = Lake(folder)
    lake.create_tables(TABLES)
    Day(lake, "q").add(5_000, MIDNIGHT, EVENING, 5_000)
    text = "SELECT count(*) AS n FROM gaps"
    command = [sys.executable, "-m", "oxcart.cli", "pipeline", "query", text, "--lake", str(folder), "--json"]
    taken = []
    for _ in range(3):
        began = time.perf_counter()
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        taken.append(time.perf_counter() - began)
        assert '"n": 0' in done.stdout or '"n":0' in done.stdout, done.stdout
    return min(taken)


def running_cores(spark: SparkSession, folder: Path, seconds: float, rate: int) -> float:
    """Returns the CPU seconds per second of a pipeline while so many jobs a second run in four queues."""
    from oxcart.spark.pipeline import Pipeline, Plan

    done = threading.Event()
    with ValkeyServer() as server, server.client() as store:
        for queue in range(_LIVE_QUEUES):
            store.hset(f"bull:q{queue}:meta", "opts.maxLenEvents", "10000")
        plan = Plan(
            folder, ServerAddress(url=server.url), QueueSelection(pattern="q*"), spool=folder / "_spool"
        )
        pipeline = Pipeline(spark, plan)
        work = [threading.Thread(target=pipeline.run, kwargs={"until": done.is_set})]
        if rate:
            work.append(threading.Thread(target=_produce, args=(store, rate, done)))
        for thread in work:
            thread.start()
        try:
            wait_until(lambda: pipeline.lake.head().number or not rate, "the pipeline runs", 120)
            time.sleep(_WARM_SECONDS)
            before, began = _cpu(), time.monotonic()
            time.sleep(seconds)
            return (_cpu() - before) / (time.monotonic() - began)
        finally:
            done.set()
            for thread in work:
                thread.join(120)


def _produce(store: Any, rate: int, done: threading.Event) -> None:
    """Writes the events of jobs as a worker does, each with its record."""
    number = 0
    while not done.wait(1 / rate):
        queue, job = f"bull:q{number % _LIVE_QUEUES}", f"job-{number}"
        number += 1
        pipe = store.pipeline(transaction=False)
        for fields in (
            {"event": "added", "name": "n"},
            {"event": "waiting"},
            {"event": "active", "prev": "waiting"},
            {"event": "completed", "returnvalue": "1", "prev": "active"},
        ):
            pipe.xadd(f"{queue}:{EVENTS}", {**fields, "jobId": job})
        ended = pipe.execute()[-1]
        record = {"event": "completed", "jobId": job, "name": "n", "worker": "w", "began": "1", "ended": "2"}
        store.xadd(f"{queue}:{ATTEMPTS}", record, id=ended)


def _cpu() -> float:
    return sum(seconds for kind, seconds in cpu_seconds().items() if kind != "JVM compiling")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[*(one.name for one in QUESTIONS), *SINGLE])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--attempts", type=int, default=200_000, help="attempts of the grown day")
    parser.add_argument("--copies", type=int, nargs="+", default=[], help="how often to multiply its files")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long a running pipeline is measured")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--check", action="store_true", help="end with 1 where a bound is missed")
    asked = parser.parse_args()
    options = f"{SETTINGS['spark.driver.extraJavaOptions']} -XX:-UseDynamicNumberOfCompilerThreads"
    spark = open_session(asked.master, settings={"spark.driver.extraJavaOptions": options})
    missed = []
    print(f"{'':13} {'CPU s':>15} {'new files':>12} {'commits':>12} {'ratio':>7} {'bound':>6}")
    with tempfile.TemporaryDirectory() as scratch:
        for one in QUESTIONS:
            if asked.only and one.name not in asked.only:
                continue
            if one.name == "attempts":
                one = msgspec.structs.replace(one, grown=(1, 4, asked.attempts))
            copies = asked.copies if one.name == "attempts" else ()
            for times, found in ask(spark, Path(scratch, one.name), one, asked.rounds, copies):
                pairs = [
                    f"{found[f'small_{unit}']:.{digits}f} / {found[f'grown_{unit}']:.{digits}f}"
                    for unit, digits in (("cpu_s", 2), ("files", 0), ("commits", 0))
                ]
                name = one.name if times == 1 else f"{one.name} × {times}"
                print(
                    f"{name:13} {pairs[0]:>15} {pairs[1]:>12} {pairs[2]:>12} {found['ratio']:>7.2f} "
                    f"{one.bound:>6.1f}   least {found['small_least']:.2f} / {found['grown_least']:.2f}",
                    flush=True,
                )
                missed += [name] if found["ratio"] > one.bound else []
        for name, bound in SINGLE.items():
            if asked.only and name not in asked.only:
                continue
            folder = Path(scratch, name)
            if name == "count":
                value = count_seconds(folder)
            else:
                value = running_cores(spark, folder, asked.seconds, _LIVE_RATE if name == "live" else 0)
            print(f"{name:13} {value:>50.2f} {bound:>6.1f}", flush=True)
            missed += [name] if value > bound else []
    spark.stop()
    if asked.check and missed:
        sys.exit(f"over the bound: {', '.join(missed)}")


if __name__ == "__main__":
    main()
