"""Ready questions of a lake: a job's history, causes of failures, slow runs, and figures by time."""

from __future__ import annotations

from typing import Any

import msgspec

from oxcart.history.reader import LakeReader
from oxcart.model.failure_groups import mask, raised_in

#: Ids that a cause shows as examples.
SAMPLES = 3
#: The cause of a failure that has no reason.
NO_REASON = "(no reason)"

Row = dict[str, Any]

#: Failed attempts, and jobs that failed without one: cancelled by a dependency, or out of their lifetime. A
#: retry without a reason is no failure: Node's events are the same for a snooze and for a returned job.
_FAILED = """
SELECT queue, name, category, reason, stack, job_id, epoch_ms(ended_at) AS ended_ms,
  outcome = 'failed' AS final
FROM attempts
WHERE ended_at >= make_timestamp_ms($since) AND ($queue IS NULL OR queue = $queue)
  AND (outcome = 'failed' OR (outcome = 'retried' AND reason IS NOT NULL))
UNION ALL
SELECT queue, name, category, reason, NULL, job_id, epoch_ms(ended_at), true
FROM jobs
WHERE ended_at >= make_timestamp_ms($since) AND ($queue IS NULL OR queue = $queue)
  AND state IN ('failed', 'dead_letter')
  AND NOT EXISTS (
    SELECT 1 FROM attempts AS tried
    WHERE tried.queue = jobs.queue AND tried.job_id = jobs.job_id AND tried.first_id = jobs.first_id
      AND tried.outcome = 'failed'
  )
"""


class JobHistory(msgspec.Struct, frozen=True):
    """One generation of a job.

    Attributes:
        job: Its row of ``jobs``.
        attempts: Its rows of ``attempts``, in their order.
        transitions: Its rows of ``transitions``, in their order.
    """

    job: Row
    attempts: list[Row]
    transitions: list[Row]


class FailureCause(msgspec.Struct):
    """Failed attempts with the same masked reason, raised in the same frame.

    Attributes:
        reason: The reason with ids, numbers and addresses masked.
        frame: Where it was raised; None without a stack trace.
        count: How many attempts failed so.
        final: How many of them ended their job.
        first_ms: When the first of them ended.
        last_ms: When the last of them ended.
        example: The reason of the last of them, unmasked.
        ids: Jobs of some of them, the latest first.
        queues: How many there are in each queue.
        names: How many there are of each job name.
        categories: How many there are of each category; the key is empty for those without one.
    """

    reason: str
    frame: str | None = None
    count: int = 0
    final: int = 0
    first_ms: int = 0
    last_ms: int = 0
    example: str = ""
    ids: list[str] = msgspec.field(default_factory=list)
    queues: dict[str, int] = msgspec.field(default_factory=dict)
    names: dict[str, int] = msgspec.field(default_factory=dict)
    categories: dict[str, int] = msgspec.field(default_factory=dict)


class Slowness(msgspec.Struct, frozen=True):
    """How long runs took.

    Attributes:
        names: One row per queue and job name: runs, p50, p90, p99 and max of ``run_ms``; the slowest first.
        runs: The longest runs, one row per attempt.
    """

    names: list[Row]
    runs: list[Row]


def job_history(reader: LakeReader, job_id: str, queue: str | None = None) -> list[JobHistory]:
    """Returns every generation of a job, the first one first; also of a job that the server has removed.

    Args:
        reader: The lake.
        job_id: The job's id.
        queue: Its queue; all queues unless given, because two may use the same id.
    """

    def rows(table: str, order: str) -> list[Row]:
        text = f"SELECT * FROM {table} WHERE job_id = $id AND ($queue IS NULL OR queue = $queue)"
        return reader.sql(f"{text} ORDER BY {order}", {"id": job_id, "queue": queue}).dicts()

    found: dict[tuple[Any, ...], JobHistory] = {}
    for job in rows("jobs", "queue, lane, created_at, first_id"):
        found[_generation(job)] = JobHistory(job, [], [])
    for attempt in rows("attempts", "attempt"):
        if (known := found.get(_generation(attempt))) is not None:
            known.attempts.append(attempt)
    for move in rows("transitions", "life, ordinal"):
        if (known := found.get(_generation(move))) is not None:
            known.transitions.append(move)
    return list(found.values())


def failure_causes(reader: LakeReader, since_ms: int, queue: str | None = None) -> list[FailureCause]:
    """Returns the causes of failures since a time, those with most failures first.

    Args:
        reader: The lake.
        since_ms: Failures that ended at this time or later.
        queue: Only of this queue.
    """
    found = reader.sql(
        "SELECT queue, coalesce(name, '') AS name, coalesce(category, '') AS category, reason, stack, "
        "count(*) AS count, count(*) FILTER (final) AS final, min(ended_ms) AS first_ms, "
        f"max(ended_ms) AS last_ms, list(job_id ORDER BY ended_ms DESC)[1:{SAMPLES}] AS ids "
        f"FROM ({_FAILED}) GROUP BY ALL ORDER BY last_ms DESC",
        {"since": since_ms, "queue": queue},
    )
    causes: dict[tuple[str, str | None], FailureCause] = {}
    for row in found.dicts():
        reason = row["reason"] or NO_REASON
        key = mask(reason), raised_in(row["stack"] or "")
        cause = causes.setdefault(key, FailureCause(*key, first_ms=row["first_ms"], example=reason))
        cause.count += row["count"]
        cause.final += row["final"]
        cause.first_ms = min(cause.first_ms, row["first_ms"])
        cause.last_ms = max(cause.last_ms, row["last_ms"])
        new = (job for job in dict.fromkeys(row["ids"]) if job not in cause.ids)
        cause.ids = [*cause.ids, *new][:SAMPLES]
        for counts, name in (
            (cause.queues, row["queue"]),
            (cause.names, row["name"]),
            (cause.categories, row["category"]),
        ):
            counts[name] = counts.get(name, 0) + row["count"]
    return sorted(causes.values(), key=lambda cause: (-cause.count, -cause.last_ms, cause.reason))


def slowest(reader: LakeReader, since_ms: int, queue: str | None = None, most: int = 10) -> Slowness:
    """Returns how long runs took that ended since a time.

    Args:
        reader: The lake.
        since_ms: Attempts that ended at this time or later.
        queue: Only of this queue.
        most: How many single runs are returned.
    """
    given = {"since": since_ms, "queue": queue}
    where = (
        "ended_at >= make_timestamp_ms($since) AND ($queue IS NULL OR queue = $queue) AND run_ms IS NOT NULL"
    )
    names = reader.sql(
        "SELECT queue, name, count(*) AS runs, quantile_cont(run_ms, 0.5) AS p50, "
        "quantile_cont(run_ms, 0.9) AS p90, quantile_cont(run_ms, 0.99) AS p99, max(run_ms) AS max "
        f"FROM attempts WHERE {where} GROUP BY queue, name ORDER BY p99 DESC, queue, name",
        given,
    ).dicts()
    runs = reader.sql(
        "SELECT job_id, queue, lane, name, attempt, run_ms, wait_ms, started_at, ended_at, outcome, worker "
        f"FROM attempts WHERE {where} ORDER BY run_ms DESC, ended_at, job_id LIMIT {int(most)}",
        given,
    ).dicts()
    return Slowness(names, runs)


def figures(reader: LakeReader, window: str, since_ms: int, queue: str | None = None) -> list[Row]:
    """Returns the figures of queues by time: arrivals, ends, waits and backlogs, those of lanes left out.

    Args:
        reader: The lake.
        window: ``minute``, ``hour`` or ``day``.
        since_ms: Windows that begin at this time or later.
        queue: Only of this queue.
    """
    return reader.sql(
        "SELECT queue, epoch_ms(start_at) AS start_ms, arrivals, completed, failed, wait_p50, wait_p99, "
        "backlog_ready, backlog_active, backlog_delayed FROM queue_metrics "
        "WHERE \"window\" = $window AND name = '*' AND lane IS NULL "
        "AND start_at >= make_timestamp_ms($since) AND ($queue IS NULL OR queue = $queue) "
        "ORDER BY queue, start_at",
        {"window": window, "since": since_ms, "queue": queue},
    ).dicts()


def _generation(row: Row) -> tuple[Any, ...]:
    return row["queue"], row["lane"], row["first_id"]
