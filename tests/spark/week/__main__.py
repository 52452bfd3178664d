"""A week in an hour: 100 queues, 7 days, 10 million entries, a pipeline that is killed.

    python -m tests.spark.week [--entries 10000000] [--queues 100] [--minutes 60] [--local] [--check]

Streams are written in compressed time, an hour of the week at a time, while a pipeline reads them. Meanwhile
the pipeline is killed (driver, JVM, executors), streams are trimmed while nothing reads them, and Node
constructors reset the retention of all queues. At the end every table is compared with what was written.

``--check`` exits with 1 if a bound is missed: the cost of a refresh in the last part against the first, the
memory, and the pace. Tables that differ always do.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.servers import ValkeyServer
from tests.spark.week.run import MOST_FILES, Size, Week
from tests.spark.week.truth import Truth

#: The last part of the week against the first.
GROWTH = {"rows_read_per_new": 1.3, "cpu_s_per_1000": 1.3}
MEMORY = 1.25
#: Seconds that a build may begin late.
LATE_S = 2.0


def main() -> int:
    """Runs the week, prints what was compared and measured, and writes build/pipeline-week.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=10_000_000)
    parser.add_argument("--queues", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=30.0)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--local", action="store_true", help="Spark on this machine alone, without a cluster")
    parser.add_argument("--check", action="store_true")
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
    slow = []
    for name, bound in GROWTH.items():
        if (ratio := figures[f"{name}_last"] / figures[f"{name}_first"]) > bound:
            slow.append(f"{name} is {ratio:.2f} times that of the beginning, at most {bound}")
    if (ratio := figures["memory_last_mb"] / figures["memory_first_mb"]) > MEMORY:
        slow.append(f"memory is {ratio:.2f} times that of the beginning, at most {MEMORY}")
    if figures["latest_start_s"] > LATE_S:
        slow.append(f"a build began {figures['latest_start_s']:.1f} s late, at most {LATE_S}")
    if figures["files_per_table_and_day"] > MOST_FILES:
        missed.append(
            f"{figures['files_per_table_and_day']:.0f} files of a table and day, at most {MOST_FILES}"
        )
    for name, value in (facts | figures).items():
        print(f"{name.replace('_', ' '):32} {value:>14,.2f}".removesuffix(".00"), flush=True)
    Path("build").mkdir(exist_ok=True)
    Path("build/pipeline-week.json").write_text(json.dumps({**facts, **figures, "missed": missed + slow}))
    for text in missed + slow:
        print(text)
    return 1 if missed or (asked.check and slow) else 0


if __name__ == "__main__":
    sys.exit(main())
