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
from tests.spark.week.driver import COMPUTED
from tests.spark.week.run import Size
from tests.spark.week.traffic import (
    MISSED,
    SCHEDULE,
    Attempt,
    Child,
    Job,
    Run,
    Traffic,
    idle_jobs,
    stream_name,
)

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

#: Later than every entry.
_END = 1 << 62
_ENTRY = pa.schema(
    [("queue", pa.string()), ("stream", pa.string()), ("ordinal", pa.int64()), ("entry_id", pa.string())]
)
_NUMBERS = {
    *("attempt", "started", "ended", "wait_ms", "run_ms", "created", "attempts", "retries", "moves"),
    *("number", "total_ms", "expected", "made", "ready", "late_ms", "run", "every_ms"),
}
_INSTANTS = {"created", "started", "ended", "expected", "made", "ready"}
_TIMES = {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
#: Rows of the truth, by table: the columns of each.
_ROWS: dict[str, tuple[str, ...]] = {
    "jobs": (*Job._fields, "number"),
    "attempts": Attempt._fields,
    "children": Child._fields,
    "runs": Run._fields,
}

Rows = list[tuple[Any, ...]]


class Truth:
    """The week as Parquet files, and the lake beside it.

    Args:
        lake: The lake.
        exported: The folder of the tables that Spark computes.
        folder: Where the files of the truth go.
        size: The size of the week.
        begin: When the week begins, in ms.
    """

    def __init__(self, lake: Lake, exported: Path, folder: Path, size: Size, begin: int) -> None:
        self.db: DuckDBPyConnection = duckdb.connect()
        self.db.execute("SET TimeZone = 'UTC'")
        version = lake.head()
        for table in STORED:
            if paths := lake.paths(version.of(table)):
                rows = self.db.read_parquet(paths, union_by_name=True, hive_partitioning=False)
                rows.create_view(f"stored_{table}")
                # The truth goes by the names of streams.
                stream = "concat_ws('@', queue, lane) AS queue"
                self.db.execute(f"CREATE VIEW {table} AS SELECT * REPLACE ({stream}) FROM stored_{table}")
        for table in COMPUTED:
            self.db.read_parquet(str(exported / f"{table}.parquet")).create_view(table)
        self.lost: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        if version.of("gaps"):
            for queue, stream, first, last in self.rows(
                "SELECT queue, stream, first_lost, last_lost FROM gaps"  # by the names of streams
            ):
                self.lost[queue, stream].append((first, last))
        self.written = 0
        self.queues = size.queues
        for name in ("entries", *_ROWS):
            (folder / name).mkdir(parents=True)
        for queue in range(size.queues):
            self._write(folder, Traffic(queue, size.jobs, size.days, begin))
        for name in ("entries", *_ROWS):
            self.db.read_parquet(f"{folder}/{name}/*.parquet").create_view(f"true_{name}")

    def rows(self, text: str) -> Rows:
        """Runs a query."""
        return self.db.execute(text).fetchall()

    def _write(self, folder: Path, traffic: Traffic) -> None:
        """Writes the truth of a queue; entries that `gaps` names are left out and their jobs are marked."""
        queue, touched = stream_name(traffic.queue), set[int]()
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
        rows: dict[str, Rows] = {name: [] for name in _ROWS}
        for life in lives:
            is_touched = life.number in touched
            rows["jobs"].append((*life.job, life.number, is_touched))
            rows["attempts"] += [(*one, is_touched) for one in life.attempts]
            if (child := life.child) is not None:
                # Its path needs the parent, the next job.
                rows["children"].append((*child, is_touched or life.number + 1 in touched))
            if (run := life.run) is not None:
                rows["runs"].append((*run, is_touched))
        for name, fields in _ROWS.items():
            parquet.write_table(_table((*fields, "touched"), rows[name]), folder / name / f"{queue}.parquet")

    def differences(self) -> dict[str, Rows]:
        """Returns, by table, rows that are in one of both alone; at most five each."""
        self._make_lists()
        return {
            name: found
            for name, text in (*_questions(), *_related())
            if (found := self.rows(f"{text} LIMIT 5"))
        }

    def _make_lists(self) -> None:
        """Makes the table `lists`: how many jobs wait in each queue all week."""
        columns = "queue VARCHAR, base VARCHAR, lane VARCHAR, wait BIGINT, delayed BIGINT"
        self.db.execute(f"CREATE TABLE lists ({columns})")
        for queue in range(self.queues):
            name, idle = stream_name(queue), idle_jobs(queue)
            base, _, lane = name.partition("@")
            self.db.execute(
                "INSERT INTO lists VALUES (?, ?, ?, ?, ?)",
                [name, base, lane or None, idle["wait"], idle["delayed"]],
            )

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
            "children": self._count("true_children"),
            "runs of schedules": self._count("true_runs"),
            "samples": self._count("counts"),
            "rows of queue_metrics": self._count("queue_metrics"),
        }

    def _count(self, table: str) -> int:
        return int(self.rows(f"SELECT count(*) FROM {table}")[0][0])


def _table(names: tuple[str, ...], rows: Rows) -> pa.Table:
    kinds = {"touched": pa.bool_(), **dict.fromkeys(_NUMBERS, pa.int64())}
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
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
            "SELECT queue, count(*) FROM true_jobs WHERE number % 100 = 5 AND NOT touched GROUP BY ALL",
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
    sums = "sum({})::BIGINT"
    counted = ("attempts", "completed", "failed", "retries", "run_total")
    yield (
        "timings",
        _apart(
            "SELECT queue, name, ended - ended % 60000, count(*), count(*) FILTER (outcome = 'completed'), "
            "count(*) FILTER (outcome = 'failed'), count(*) FILTER (outcome = 'retried'), "
            "sum(run_ms)::BIGINT "
            f"FROM true_attempts WHERE {whole} GROUP BY ALL",
            f"SELECT queue, name, epoch_ms(start_at), {', '.join(map(sums.format, counted))} FROM timings "
            f"WHERE {whole} GROUP BY ALL",
        ),
    )
    labels = "unnest([NULL, 'plan', 'tenant']) AS tag, unnest([NULL, plan, tag_tenant]) AS value"
    yield (
        "spending",
        _apart(
            "SELECT queue, name, day, tenant, tag, value, count(*), sum(run_ms)::BIGINT, "
            "coalesce(sum(run_ms) FILTER (outcome != 'completed'), 0)::BIGINT FROM (SELECT *, "
            f"CAST(epoch_ms(ended) AS DATE) AS day, {labels} FROM true_attempts WHERE {whole}) "
            "WHERE tag IS NULL OR value IS NOT NULL GROUP BY ALL",
            "SELECT queue, name, day, tenant, tag, value, sum(attempts)::BIGINT, sum(run_total)::BIGINT, "
            f"sum(wasted_total)::BIGINT FROM spending WHERE {whole} GROUP BY ALL",
        ),
    )
    yield (
        "failures",
        _apart(
            # The event of a retry has no reason: a retry by Node, without a record, is in no cluster.
            "SELECT queue, count(*) FROM true_attempts WHERE (outcome = 'failed' OR (outcome = 'retried' "
            f"AND told_by = 'record')) AND {whole} GROUP BY ALL",
            f"SELECT queue, CAST(sum(count) AS BIGINT) FROM failures WHERE {whole} GROUP BY ALL",
        ),
    )


def _related() -> Iterator[tuple[str, str]]:
    """Yields what is compared of flows, schedules, lanes and samples, and a query of the differences."""
    untouched = "(queue, job_id) NOT IN (SELECT (queue, job_id) FROM true_jobs WHERE touched)"
    whole = "queue NOT IN (SELECT queue FROM true_jobs WHERE touched)"
    stream = "concat_ws('@', queue, lane)"
    for table, truth, fields in (("flows", "children", Child._fields[:-1]), ("firings", "runs", Run._fields)):
        yield (
            table,
            _apart(
                f"SELECT {', '.join(fields)} FROM true_{truth} WHERE NOT touched",
                f"SELECT {', '.join(map(_stored, fields))} FROM {table} WHERE {untouched}"
                # A child's truth is marked when its parent lost entries, too.
                f" AND (queue, job_id) NOT IN (SELECT (queue, job_id) FROM true_{truth} WHERE touched)",
            ),
        )
    yield (
        "critical_paths",
        _apart(
            "SELECT queue, parent_id, job_id, total_ms, ended - created FROM true_children "
            f"WHERE NOT touched AND {whole}",
            "SELECT flow_queue, flow_id, job_id, total_ms, took_ms FROM critical_paths "
            f"WHERE step = 1 AND steps = 2 AND {whole.replace('queue', 'flow_queue', 1)}",
        ),
    )
    yield (
        "schedules",
        _apart(
            f"SELECT queue, '{SCHEDULE}', count(*), (count(*) * {1 + MISSED} - {MISSED} * "
            "bool_or(first)::INT)::BIGINT, count(*) FILTER (state = 'failed'), max(late_ms) "
            "FROM (SELECT *, CAST(epoch_ms(expected) AS DATE) AS day, "
            "row_number() OVER (PARTITION BY queue ORDER BY expected) = 1 AS first FROM true_runs "
            f"WHERE {whole}) GROUP BY queue, day",
            f"SELECT {stream}, schedule, made, expected, failed, late_max FROM schedules "
            f"WHERE {whole.replace('queue', stream, 1)}",
        ),
    )
    for table in ("jobs", "attempts", "transitions", "queue_metrics", "timings", "spending", "counts"):
        yield (
            f"lanes of {table}",
            f"SELECT DISTINCT queue, lane FROM stored_{table} EXCEPT SELECT base, lane FROM lists",
        )
    idle = "SELECT queue, wait, 0, 0, 0, delayed, 0, 0, 0 FROM lists"
    lengths = "wait, paused, active, prioritized, delayed, waiting_children, completed, failed"
    yield (
        "counts",
        f"SELECT queue, {lengths} FROM counts EXCEPT {idle}",
    )
    minute = "date_trunc('minute', occurred_at)"
    yield (
        "samples of a minute",
        f"SELECT queue, {minute}, count(*) FROM counts GROUP BY 1, 2 HAVING count(*) > 1",
    )
    yield ("queues without samples", "SELECT queue FROM lists EXCEPT SELECT queue FROM counts")
    for window in _TIMES:
        yield (
            f"backlog by {window}",
            _apart(
                f"SELECT DISTINCT queue, date_trunc('{window}', occurred_at), wait, delayed FROM counts",
                "SELECT queue, start_at, backlog_ready, backlog_delayed FROM queue_metrics m "
                f"WHERE m.window = '{window}' AND backlog_ready IS NOT NULL",
            ),
        )


def _stored(name: str) -> str:
    """A column of a stored table as the truth has it."""
    if name in _INSTANTS:
        return f"epoch_ms({name}_at)"
    if name in ("plan", "tag_tenant"):
        return f"tags['{name.removeprefix('tag_')}']"
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
