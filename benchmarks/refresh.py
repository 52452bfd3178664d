"""Measures what a refresh of silver and gold costs, and what that depends on.

    python -m benchmarks.refresh [--attempts 0 500000] [--queues 1 20 100] [--files 4 1000] [--jobs 1000]

Each size gets a lake of its own, whose bronze is written by hand. The history of the day is built first. Then
``--jobs`` new jobs arrive, over all queues, and one refresh is measured; ``--rounds`` times, after two that
are not measured. The figures are CPU seconds of Python and the JVM without its compilers, wall-clock seconds,
and new files.

- attempts: attempts that the day already has;
- queues: the jobs are spread over so many queues, 20 jobs in each if there are several;
- files: bronze files that were built from before and are not compacted.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.processes import cpu_seconds
from oxcart.broker.export import ATTEMPTS, EVENTS
from oxcart.spark.lake.bronze import write_rows
from oxcart.spark.lake.versions import Change, Lake
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
            made = write_rows(self._lake, self._queue, self._batches(share, begin, end))
            self._lake.publish(Change("ingest", add=made))

    def _batches(self, jobs: int, since: int, until: int) -> Iterator[Any]:
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


def measure(
    spark: SparkSession, root: Path, *, attempts: int, queues: int, files: int, jobs: int, rounds: int
) -> dict[str, float]:
    """Returns the medians of CPU seconds, wall-clock seconds and new files of a refresh."""
    from oxcart.spark.build.builder import Builder

    lake = Lake(root)
    days = [Day(lake, f"q{number}") for number in range(queues)]
    builder = Builder(spark, lake)
    for day in days:
        day.add(max(1, attempts // queues), MIDNIGHT, EVENING - 60_000, files)
    began = time.perf_counter()
    builder.refresh()
    whole = time.perf_counter() - began
    found: list[tuple[float, float, int]] = []
    share = 20 if queues > 1 else jobs
    for at in range(_WARM + rounds):
        for day in days:
            day.add(share, EVENING + at * 30_000, EVENING + at * 30_000 + 20_000)
        before = set(lake.head().files)
        cpu, began = _cpu(), time.perf_counter()
        builder.refresh()
        seconds = time.perf_counter() - began
        if at >= _WARM:
            found.append((_cpu() - cpu, seconds, len(lake.head().files.keys() - before)))
    cpu_s, wall_s, new_files = (statistics.median(column) for column in zip(*found, strict=True))
    return {"whole_s": whole, "cpu_s": cpu_s, "wall_s": wall_s, "new_files": new_files}


def _cpu() -> float:
    return sum(seconds for kind, seconds in cpu_seconds().items() if kind != "JVM compiling")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempts", type=int, nargs="+", default=[0])
    parser.add_argument("--queues", type=int, nargs="+", default=[1])
    parser.add_argument("--files", type=int, nargs="+", default=[4])
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    asked = parser.parse_args()
    options = f"{SETTINGS['spark.driver.extraJavaOptions']} -XX:-UseDynamicNumberOfCompilerThreads"
    spark = open_session(asked.master, settings={"spark.driver.extraJavaOptions": options})
    print(" attempts queues  files  whole s   CPU s  wall s new files")
    sizes = [(a, q, f) for a in asked.attempts for q in asked.queues for f in asked.files]
    with tempfile.TemporaryDirectory() as scratch:
        for number, (attempts, queues, files) in enumerate(sizes):
            one = measure(
                spark,
                Path(scratch, str(number)),
                attempts=attempts,
                queues=queues,
                files=files,
                jobs=asked.jobs,
                rounds=asked.rounds,
            )
            print(
                f"{attempts:>9} {queues:>6} {files:>6} {one['whole_s']:>8.1f} {one['cpu_s']:>7.1f} "
                f"{one['wall_s']:>7.1f} {one['new_files']:>9.0f}",
                flush=True,
            )
    spark.stop()


if __name__ == "__main__":
    main()
