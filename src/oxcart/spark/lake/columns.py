"""The columns of every table, for readers without Spark.

The transforms define the columns; a test compares this list with their plans. Types are Spark's. A reader
needs the list for tables that have no file yet, and to tell instants from durations: both are in ms.
"""

from __future__ import annotations

from collections.abc import Mapping

from oxcart.model.errors import ValidationError

_ENTRY = (
    "stream string, kind string, life int, ordinal bigint, entry_id string, at_ms bigint, event string, "
    "job_id string, name string, prev string, due_ms bigint, result string, reason string, data string, "
    "attempts_made int, extra string, raw binary, lost bigint, cause string"
)
_TIMES = "created_ms bigint, started_ms bigint, ended_ms bigint"
_SPENT = "wait_ms bigint, run_ms bigint"
_LENGTHS = ("wait", "paused", "active", "prioritized", "delayed", "waiting_children", "completed", "failed")
_FAILURES = ("temporary", "permanent", "timeout", "cancelled", "system", "untold")


def _columns(text: str, first: str = "day date, queue string, lane string") -> Mapping[str, str]:
    found = (column.partition(" ") for column in f"{first}, {text}".split(", "))
    return {name: kind for name, _, kind in found}


def _all(names: tuple[str, ...], kind: str, form: str = "{}") -> str:
    return ", ".join(f"{form.format(name)} {kind}" for name in names)


#: The stored tables. Files of bronze and of `open` have the stream's name in `queue` and no `lane`.
STORED: Mapping[str, Mapping[str, str]] = {
    "events": _columns(_ENTRY),
    "open": _columns(_ENTRY),
    "quarantine": _columns(f"{_ENTRY}, why string"),
    "attempts": _columns(
        "job_id string, first_id string, attempt int, name string, queued_ms bigint, started_ms bigint, "
        f"ended_ms bigint, {_SPENT}, outcome string, told_by string, reason string, category string, "
        "code string, worker string, stack string, end_id string"
    ),
    "jobs": _columns(
        f"job_id string, first_id string, name string, born string, state string, {_TIMES}, attempts int, "
        f"retries int, stalls int, {_SPENT}, reason string, category string, code string, worker string, "
        "correlation_id string, tags map<string,string>"
    ),
    "transitions": _columns(
        "job_id string, first_id string, life int, ordinal bigint, at_ms bigint, event string, "
        "from_state string, to_state string, legal boolean"
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
}

#: Tables that Spark computes from others when a query names them.
COMPUTED: Mapping[str, Mapping[str, str]] = {
    "critical_paths": _columns(
        "flow_queue string, flow_id string, flow_first_id string, flow_name string, flow_state string, "
        "total_ms bigint, steps int, step int, queue string, lane string, job_id string, first_id string, "
        "name string, state string, begins_ms bigint, started_ms bigint, ended_ms bigint, took_ms bigint, "
        f"{_SPENT}, share double",
        "day date",
    ),
    "schedules": _columns(
        "schedule string, name string, every_ms bigint, cron string, tz string, expected bigint, "
        "made bigint, started bigint, missed bigint, failed bigint, late_p50 double, late_p99 double, "
        "late_max bigint, first_ms bigint, last_ms bigint"
    ),
}

#: Columns in ms that are durations. All other columns whose name ends in `_ms` are instants since 1970.
DURATIONS = frozenset({"every_ms", "late_ms", "run_ms", "took_ms", "total_ms", "wait_ms"})

#: Columns in ms that are instants.
INSTANTS = frozenset(
    name
    for columns in (*STORED.values(), *COMPUTED.values())
    for name in columns
    if name.endswith("_ms") and name not in DURATIONS
)


def unknown_table(name: str) -> ValidationError:
    """Returns the error of a table that does not exist."""
    return ValidationError("table", f"one of {', '.join(sorted((*STORED, *COMPUTED)))}", name)
