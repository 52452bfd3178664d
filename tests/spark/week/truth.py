"""Compares the tables of a lake with the week that was written, row by row, in DuckDB."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
from pyarrow import parquet

from oxcart.spark.lake.columns import STORED
from oxcart.spark.lake.versions import Lake
from tests.spark.week.run import Size
from tests.spark.week.traffic import Attempt, Job, Traffic, queue_name

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

#: Later than every entry.
_END = 1 << 62
_ENTRY = pa.schema(
    [("queue", pa.string()), ("stream", pa.string()), ("ordinal", pa.int64()), ("entry_id", pa.string())]
)
_NUMBERS = {"attempt", "started", "ended", "wait_ms", "run_ms", "created", "attempts", "retries", "moves"}
_TIMES = {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
_TABLES = ("events", "jobs", "attempts", "transitions", "gaps", "quarantine", "queue_metrics", "timings")

Rows = list[tuple[Any, ...]]


class Truth:
    """The week as Parquet files, and the lake beside it.

    Args:
        lake: The lake.
        folder: Where the files of the truth go.
        size: The size of the week.
        begin: When the week begins, in ms.
    """

    def __init__(self, lake: Lake, folder: Path, size: Size, begin: int) -> None:
        self.db: DuckDBPyConnection = duckdb.connect()
        self.db.execute("SET TimeZone = 'UTC'")
        version = lake.head()
        for table in (*_TABLES, "failures", "spending"):
            assert table in STORED
            if paths := lake.paths(version.of(table)):
                self.db.read_parquet(paths, union_by_name=True, hive_partitioning=False).create_view(table)
        self.lost: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        if version.of("gaps"):
            for queue, stream, first, last in self.rows(
                "SELECT queue, stream, first_lost, last_lost FROM gaps"
            ):
                self.lost[queue, stream].append((first, last))
        self.written = 0
        for name in ("entries", "jobs", "attempts"):
            (folder / name).mkdir(parents=True)
        for queue in range(size.queues):
            self._write(folder, Traffic(queue, size.jobs, size.days, begin))
        for name in ("entries", "jobs", "attempts"):
            self.db.read_parquet(f"{folder}/{name}/*.parquet").create_view(f"true_{name}")

    def rows(self, text: str) -> Rows:
        """Runs a query."""
        return self.db.execute(text).fetchall()

    def _write(self, folder: Path, traffic: Traffic) -> None:
        """Writes the truth of a queue; entries that `gaps` names are left out and their jobs are marked."""
        queue, touched = queue_name(traffic.queue), set[int]()
        columns: list[list[Any]] = [[], [], []]
        for entry_id, ordinal, entry in traffic.until(_END):
            self.written += 1
            if any(first <= ordinal <= last for first, last in self.lost.get((queue, entry.stream), ())):
                touched.add(entry.job)
                continue
            for column, value in zip(columns, (entry.stream, ordinal, entry_id), strict=True):
                column.append(value)
        streams, ordinals, ids = columns
        made = pa.table([[queue] * len(ids), streams, ordinals, ids], schema=_ENTRY)
        parquet.write_table(made, folder / "entries" / f"{queue}.parquet")
        lives = traffic.begun
        jobs = [(*life.job, life.number in touched) for life in lives]
        attempts = [(*one, life.number in touched) for life in lives for one in life.attempts]
        for name, fields, rows in (("jobs", Job._fields, jobs), ("attempts", Attempt._fields, attempts)):
            parquet.write_table(_table((*fields, "touched"), rows), folder / name / f"{queue}.parquet")

    def differences(self) -> dict[str, Rows]:
        """Returns, by table, rows that are in one of both alone; at most five each."""
        return {name: found for name, text in _questions() if (found := self.rows(f"{text} LIMIT 5"))}

    def facts(self) -> dict[str, int]:
        """Returns the sizes of what was compared."""
        return {
            "entries written": self.written,
            "entries lost, as gaps say": sum(
                last - first + 1 for gaps in self.lost.values() for first, last in gaps
            ),
            "streams with gaps": len(self.lost),
            "jobs": self._count("true_jobs"),
            "jobs that lost entries": self._count("true_jobs WHERE touched"),
            "attempts": self._count("true_attempts"),
            "rows of queue_metrics": self._count("queue_metrics"),
        }

    def _count(self, table: str) -> int:
        return int(self.rows(f"SELECT count(*) FROM {table}")[0][0])


def _table(names: tuple[str, ...], rows: Rows) -> pa.Table:
    kinds = {"touched": pa.bool_(), **dict.fromkeys(_NUMBERS, pa.int64())}
    columns = zip(*rows, strict=True)
    arrays = [
        pa.array(column, kinds.get(name, pa.string())) for name, column in zip(names, columns, strict=True)
    ]
    return pa.table(arrays, names=list(names))


def _questions() -> Iterator[tuple[str, str]]:
    """Yields what is compared, and a query of the differences."""
    sums = "count(*), count(DISTINCT ordinal), bit_xor(hash(ordinal, entry_id))"
    yield (
        "events",
        _apart(
            f"SELECT queue, stream, {sums} FROM true_entries GROUP BY ALL",
            f"SELECT queue, stream, {sums} FROM events WHERE kind = 'entry' GROUP BY ALL",
        ),
    )
    untouched = "(queue, job_id) NOT IN (SELECT (queue, job_id) FROM true_jobs WHERE touched)"
    for table, fields in (("jobs", Job._fields[:-1]), ("attempts", Attempt._fields)):
        there = ", ".join(map(_stored, fields))
        yield (
            table,
            _apart(
                f"SELECT {', '.join(fields)} FROM true_{table} WHERE NOT touched",
                f"SELECT {there} FROM {table} WHERE {untouched}",
            ),
        )
        # One that lost entries may have nulls, but no row is made up or doubled.
        key = "queue, job_id" if table == "jobs" else "queue, job_id, attempt"
        yield (
            f"{table} that lost entries",
            f"SELECT {key} FROM {table} EXCEPT ALL SELECT {key} FROM true_{table}",
        )
    yield (
        "transitions",
        _apart(
            "SELECT queue, job_id, moves FROM true_jobs WHERE NOT touched",
            f"SELECT queue, job_id, count(*) FROM transitions WHERE legal AND {untouched} GROUP BY ALL",
        ),
    )
    yield (
        "illegal transitions",
        f"SELECT queue, job_id, event FROM transitions WHERE NOT legal OR (legal IS NULL AND {untouched})",
    )
    yield (
        "quarantine",
        _apart(
            "SELECT queue, count(*) FROM true_jobs WHERE split_part(job_id, '-', 2)::INT % 100 = 5 "
            "AND NOT touched GROUP BY ALL",
            f"SELECT queue, count(*) FROM quarantine WHERE event = 'mystery' AND {untouched} GROUP BY ALL",
        ),
    )
    whole = "queue NOT IN (SELECT queue FROM true_jobs WHERE touched)"
    for window, length in _TIMES.items():
        yield (
            f"queue_metrics by {window}",
            _apart(
                _metrics(length, whole),
                "SELECT queue, name, epoch_ms(start_at), arrivals, completed, failed, retries, wait_max, "
                "run_max, round(wait_p50, 6), round(wait_p99, 6) FROM queue_metrics m "
                f"WHERE m.window = '{window}' AND {whole} "
                "AND (arrivals > 0 OR completed > 0 OR failed > 0 OR retries > 0)",
            ),
        )
    yield (
        "timings",
        _apart(
            f"SELECT queue, name, count(*), sum(run_ms) FROM true_attempts WHERE {whole} GROUP BY ALL",
            "SELECT queue, name, CAST(sum(attempts) AS BIGINT), sum(run_total) FROM timings "
            f"WHERE {whole} GROUP BY ALL",
        ),
    )
    yield (
        "failures",
        _apart(
            "SELECT queue, count(*) FROM true_attempts WHERE outcome IN ('failed', 'retried') "
            f"AND {whole} GROUP BY ALL",
            f"SELECT queue, CAST(sum(count) AS BIGINT) FROM failures WHERE {whole} GROUP BY ALL",
        ),
    )


def _stored(name: str) -> str:
    """A column of a stored table as the truth has it."""
    if name in ("created", "started", "ended"):
        return f"epoch_ms({name}_at)"
    return f"CAST({name} AS BIGINT)" if name in _NUMBERS else name


def _metrics(length: int, whole: str) -> str:
    """The figures of windows of so many ms, from the truth."""
    arrived = (
        f"SELECT queue, unnest(['*', name]) AS name, created - created % {length} AS start, 1 AS arrived, "
        "0 AS completed, 0 AS failed, 0 AS retried, NULL AS wait_ms, NULL AS run_ms "
        f"FROM true_jobs WHERE {whole}"
    )
    ended = (
        f"SELECT queue, unnest(['*', name]), ended - ended % {length}, 0, (outcome = 'completed')::INT, "
        "(outcome = 'failed')::INT, (outcome = 'retried')::INT, wait_ms, run_ms "
        f"FROM true_attempts WHERE {whole}"
    )
    return (
        "SELECT queue, name, start, sum(arrived)::BIGINT, sum(completed)::BIGINT, sum(failed)::BIGINT, "
        "sum(retried)::BIGINT, max(wait_ms), max(run_ms), round(quantile_cont(wait_ms, 0.5), 6), "
        f"round(quantile_cont(wait_ms, 0.99), 6) FROM ({arrived} UNION ALL {ended}) GROUP BY ALL"
    )


def _apart(wanted: str, found: str) -> str:
    return (
        f"SELECT 'missing' AS what, * FROM (({wanted}) EXCEPT ALL ({found})) UNION ALL "
        f"SELECT 'wrong', * FROM (({found}) EXCEPT ALL ({wanted}))"
    )
