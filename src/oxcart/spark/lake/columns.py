"""The columns of every table: their names in the transforms, and their names and types in files.

The transforms define the columns; a test compares this list with their plans. Types are Spark's. Transforms
compute with instants in ms (``ended_ms``, a bigint). Files have them as timestamps in UTC (``ended_at``).
`oxcart.spark.lake.tables` and `oxcart.spark.lake.bronze` convert between the two, and nothing else does.
"""

from __future__ import annotations

from collections.abc import Mapping

from oxcart.model.errors import ValidationError
from oxcart.spark.views.catalogue import VIEWS

#: The windows of `queue_metrics` and their length in ms, and the name of the row of all jobs.
WINDOWS = {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
ALL = "*"
#: The events of jobs that are open at the end of a day.
OPEN = "open"
#: What days were built from, for builds alone (`oxcart.spark.build.notes`).
BUILDS = "builds"

_ENTRY = (
    "stream string, kind string, life int, ordinal bigint, entry_id string, at_ms bigint, event string, "
    "job_id string, name string, prev string, due_ms bigint, result string, reason string, data string, "
    "attempts_made int, extra string, raw binary, lost bigint, cause string"
)
_TIMES = "created_ms bigint, started_ms bigint, ended_ms bigint"
_SPENT = "wait_ms bigint, run_ms bigint"
_BUCKETS = "array<struct<ms:bigint,times:bigint>>"
_LENGTHS = ("wait", "paused", "active", "prioritized", "delayed", "waiting_children", "completed", "failed")
_FAILURES = ("temporary", "permanent", "timeout", "cancelled", "system", "untold")


def _columns(text: str, first: str | None = "day date, queue string, lane string") -> Mapping[str, str]:
    whole = text if first is None else f"{first}, {text}"
    found = (column.partition(" ") for column in whole.split(", "))
    return {name: kind for name, _, kind in found}


def _all(names: tuple[str, ...], kind: str, form: str = "{}") -> str:
    return ", ".join(f"{form.format(name)} {kind}" for name in names)


#: The stored tables, with the names and types of transforms. In transforms, rows of `events` and `open` have
#: the stream's name in `queue`.
STORED: Mapping[str, Mapping[str, str]] = {
    "events": _columns(_ENTRY),
    "open": _columns(_ENTRY),
    "quarantine": _columns(f"{_ENTRY}, why string"),
    "attempts": _columns(
        "job_id string, first_id string, attempt int, name string, queued_ms bigint, started_ms bigint, "
        f"ended_ms bigint, {_SPENT}, outcome string, told_by string, reason string, category string, "
        "code string, worker string, stack string, version string, tenant string, tags map<string,string>, "
        "end_id string"
    ),
    "jobs": _columns(
        f"job_id string, first_id string, name string, born string, state string, {_TIMES}, attempts int, "
        f"retries int, stalls int, {_SPENT}, reason string, category string, code string, worker string, "
        "correlation_id string, tags map<string,string>"
    ),
    "transitions": _columns(
        "job_id string, first_id string, life int, ordinal bigint, at_ms bigint, event string, "
        "from_state string, to_state string, legal boolean, steps string"
    ),
    "gaps": _columns(
        "stream string, life int, first_lost bigint, last_lost bigint, count bigint, refilled bigint, "
        "cause string, after_id string, at_ms bigint"
    ),
    "counts": _columns(f"at_ms bigint, {_all(_LENGTHS, 'bigint')}"),
    "flows": _columns(
        "job_id string, first_id string, name string, state string, parent_queue string, parent_id string, "
        f"on_failure string, {_TIMES}, {_SPENT}"
    ),
    "firings": _columns(
        "schedule string, job_id string, first_id string, name string, state string, expected_ms bigint, "
        "made_ms bigint, ready_ms bigint, started_ms bigint, late_ms bigint, ended_ms bigint, attempts int, "
        "run bigint, every_ms bigint, cron string, tz string"
    ),
    "queue_metrics": _columns(
        "window string, start_ms bigint, name string, arrivals bigint, completed bigint, failed bigint, "
        f"retries bigint, stalls bigint, {_all(_FAILURES, 'bigint', 'failures_{}')}, "
        f"{_all(('ready', 'active', 'delayed'), 'bigint', 'backlog_{}')}, "
        f"{_all(('p50', 'p90', 'p99'), 'double', 'wait_{}')}, wait_max bigint, "
        f"{_all(('p50', 'p90', 'p99'), 'double', 'run_{}')}, run_max bigint"
    ),
    "failures": _columns(
        "cluster string, message string, frames string, example string, example_job string, "
        "names array<string>, categories array<string>, first_ms bigint, last_ms bigint, count bigint, "
        "fatal bigint"
    ),
    "timings": _columns(
        "start_ms bigint, name string, version string, attempts bigint, completed bigint, failed bigint, "
        "unrun bigint, cancelled bigint, retries bigint, stalls bigint, run_total bigint, "
        f"waits {_BUCKETS}, runs {_BUCKETS}, last_ms bigint"
    ),
    "spending": _columns(
        "name string, tenant string, tag string, value string, attempts bigint, run_total bigint, "
        "wasted_total bigint, last_ms bigint"
    ),
}

#: Tables that DuckDB and Spark compute from stored ones when a query names them.
VIEWED: Mapping[str, Mapping[str, str]] = {name: _columns(view.columns, None) for name, view in VIEWS.items()}

#: Columns in ms that are durations. All other columns whose name ends in `_ms` are instants since 1970.
DURATIONS = frozenset({"every_ms", "late_ms", "run_ms", "took_ms", "total_ms", "wait_ms", "within_ms"})

#: Columns in ms that are instants.
INSTANTS = frozenset(
    name
    for columns in (*STORED.values(), *VIEWED.values())
    for name in columns
    if name.endswith("_ms") and name not in DURATIONS
)
_TIMESTAMP = "timestamp"


def public_name(name: str) -> str:
    """Returns the name of a column in files and queries: an instant ``ended_ms`` is ``ended_at``.

    ``at_ms`` is ``occurred_at``, because ``at`` is a word of SQL.
    """
    if name not in INSTANTS:
        return name
    return "occurred_at" if name == "at_ms" else f"{name.removesuffix('_ms')}_at"


def public(table: str) -> Mapping[str, str]:
    """Returns the columns of a table in files and queries."""
    columns = STORED.get(table) or VIEWED[table]
    return {public_name(name): _TIMESTAMP if name in INSTANTS else kind for name, kind in columns.items()}


#: Columns of files and queries that are times.
TIMES = frozenset(map(public_name, INSTANTS))


def unknown_table(name: str) -> ValidationError:
    """Returns the error of a table that does not exist."""
    return ValidationError("table", f"one of {', '.join(sorted((*STORED, *VIEWED)))}", name)
