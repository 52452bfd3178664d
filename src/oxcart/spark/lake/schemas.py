"""The columns of the tables, with Spark's types.

The transforms define them; a test compares the two. Spark would take seconds to plan all transforms, only to
read the columns of one empty table from the plan.
"""

from __future__ import annotations

from collections.abc import Mapping

from oxcart.spark.read.entries import SCHEMA

#: Silver and gold, and the tallies of builds.
_MADE: Mapping[str, str] = {
    "quarantine": """
        day date, queue string, lane string, stream string, kind string, life int, ordinal bigint,
        entry_id string, at_ms bigint, event string, job_id string, name string, prev string, due_ms
        bigint, result string, reason string, data string, attempts_made int, extra string, raw binary,
        lost bigint, cause string, why string
    """,
    "attempts": """
        day date, queue string, lane string, job_id string, first_id string, attempt int, name string,
        queued_ms bigint, started_ms bigint, ended_ms bigint, wait_ms bigint, run_ms bigint, outcome
        string, told_by string, reason string, category string, code string, worker string, stack
        string, end_id string
    """,
    "jobs": """
        day date, queue string, lane string, job_id string, first_id string, name string, born string,
        state string, created_ms bigint, started_ms bigint, ended_ms bigint, attempts int, retries int,
        stalls int, wait_ms bigint, run_ms bigint, reason string, category string, code string, worker
        string, correlation_id string, tags map<string,string>
    """,
    "transitions": """
        day date, queue string, lane string, job_id string, first_id string, life int, ordinal bigint,
        at_ms bigint, event string, from_state string, to_state string, legal boolean
    """,
    "gaps": """
        day date, queue string, lane string, stream string, life int, first_lost bigint, last_lost
        bigint, count bigint, refilled bigint, cause string, after_id string, at_ms bigint
    """,
    "counts": """
        day date, queue string, lane string, at_ms bigint, wait bigint, paused bigint, active bigint,
        prioritized bigint, delayed bigint, waiting_children bigint, completed bigint, failed bigint
    """,
    "flows": """
        day date, queue string, lane string, job_id string, first_id string, name string, state string,
        parent_queue string, parent_id string, on_failure string, created_ms bigint, started_ms bigint,
        ended_ms bigint, wait_ms bigint, run_ms bigint
    """,
    "firings": """
        day date, queue string, lane string, schedule string, job_id string, first_id string, name
        string, state string, expected_ms bigint, made_ms bigint, ready_ms bigint, started_ms bigint,
        late_ms bigint, ended_ms bigint, attempts int, run bigint, every_ms bigint, cron string, tz
        string
    """,
    "queue_metrics": """
        day date, queue string, lane string, window string, start_ms bigint, name string, arrivals
        bigint, completed bigint, failed bigint, retries bigint, stalls bigint, failures_temporary
        bigint, failures_permanent bigint, failures_timeout bigint, failures_cancelled bigint,
        failures_system bigint, failures_untold bigint, backlog_ready bigint, backlog_active bigint,
        backlog_delayed bigint, wait_p50 double, wait_p90 double, wait_p99 double, wait_max bigint,
        run_p50 double, run_p90 double, run_p99 double, run_max bigint
    """,
    "failures": """
        day date, queue string, lane string, cluster string, message string, frames string, example
        string, example_job string, names array<string>, categories array<string>, first_ms bigint,
        last_ms bigint, count bigint, fatal bigint
    """,
    "tallies": """
        day date, queue string, window string, start_ms bigint, name string, arrivals bigint, completed
        bigint, failed bigint, retries bigint, stalls bigint, failures_temporary bigint,
        failures_permanent bigint, failures_timeout bigint, failures_cancelled bigint, failures_system
        bigint, failures_untold bigint, sample
        struct<at_ms:bigint,ready:bigint,active:bigint,delayed:bigint>, wait_max bigint, run_max bigint,
        times array<struct<kind:string,ms:bigint,times:bigint>>, cluster string, message string, frames
        string, example string, example_job string, names array<string>, categories array<string>,
        first_ms bigint, last_ms bigint, count bigint, fatal bigint
    """,
}
#: The columns of each table that the lake stores. Bronze and open jobs have the same ones.
SCHEMAS: Mapping[str, str] = {
    "events": SCHEMA,
    "open": SCHEMA,
    **{table: " ".join(columns.split()) for table, columns in _MADE.items()},
}
