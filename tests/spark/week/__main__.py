"""A week in an hour: 100 queues, 7 days, 10 million entries, a pipeline that is killed.

    python -m tests.spark.week [--entries 10000000] [--queues 100] [--minutes 60] [--local] [--no-check]

Streams are written in compressed time, an hour of the week at a time, while a pipeline reads them. Meanwhile
the pipeline is killed (driver, JVM, executors), streams are trimmed while nothing reads them, and Node
constructors reset the retention of all queues. At the end every table is compared with what was written.

It exits with 1 if a table differs, or if a bound of `tests.spark.week.judge` is missed: the cost of a refresh
in the last part against the first, the memory of the last process by its age, the pace, and files. With
``--no-check`` only tables that differ and files count, for a week that is too short to judge.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.servers import ValkeyServer
from tests.spark.week.judge import many_files, missed_bounds
from tests.spark.week.run import Size, Week
from tests.spark.week.truth import Truth


def main() -> int:
    """Runs the week, prints what was compared and measured, and writes build/pipeline-week.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=10_000_000)
    parser.add_argument("--queues", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=30.0)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--local", action="store_true", help="Spark on this machine alone, without a cluster")
    parser.add_argument("--check", action=argparse.BooleanOptionalAction, default=True)
    asked = parser.parse_args()
    steps = 7 * 24
    size = Size(
        queues=asked.queues,
        entries=asked.entries,
        steps=steps,
        seconds=asked.minutes * 60 / steps,
        every=asked.every,
        kills=asked.kills,
        executors=0 if asked.local else 2,
    )
    with ValkeyServer() as server, tempfile.TemporaryDirectory() as scratch:
        week = Week(size, server.url, Path(scratch))
        week.run()
        truth = Truth(week.lake, week.exported, Path(scratch, "truth"), size, week.begin)
        differences, facts, figures = truth.differences(), truth.facts(), week.figures()
    missed = [f"{table} differs from the truth" for table in differences]
    for name, rows in differences.items():
        print(f"{name}: {rows}")
    missed += many_files(figures)
    slow = missed_bounds(figures)
    for name, value in (facts | figures).items():
        print(f"{name.replace('_', ' '):32} {value:>14,.2f}".removesuffix(".00"), flush=True)
    Path("build").mkdir(exist_ok=True)
    Path("build/pipeline-week.json").write_text(json.dumps({**facts, **figures, "missed": missed + slow}))
    for text in missed + slow:
        print(text)
    return 1 if missed or (asked.check and slow) else 0


if __name__ == "__main__":
    sys.exit(main())
