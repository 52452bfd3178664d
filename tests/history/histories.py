"""Generated rows of gold whose answers are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from typing import Any

from tests.history.lakes import MIDNIGHT

MINUTE, HOUR, DAY, WEEK = 60_000, 3_600_000, 86_400_000, 604_800_000

Row = dict[str, Any]


def day_of(at: int) -> date:
    return datetime.fromtimestamp(at / 1000, UTC).date()


def buckets(counts: Mapping[int, int]) -> list[dict[str, int]]:
    return [{"ms": ms, "times": times} for ms, times in sorted(counts.items())]


def timing(
    at: int,
    *,
    completed: int = 0,
    failed: int = 0,
    retries: int = 0,
    waits: Mapping[int, int] | None = None,
    runs: Mapping[int, int] | None = None,
    **more: Any,
) -> Row:
    """A row of `timings`: the minute that begins `at` ms after midnight."""
    start = MIDNIGHT + at
    known = {
        "day": day_of(start),
        "queue": "mail",
        "name": "send",
        "start_ms": start,
        "last_ms": start + 59_000,
    }
    counts = {
        "completed": completed,
        "failed": failed,
        "retries": retries,
        "attempts": completed + failed + retries,
    }
    rest = {"unrun": 0, "cancelled": 0, "stalls": 0, "run_total": 0}
    return {**known, **counts, **rest, "waits": buckets(waits or {}), "runs": buckets(runs or {}), **more}


def metric(at: int, window: str = "minute", **more: Any) -> Row:
    """A row of `queue_metrics` of the whole queue."""
    start = MIDNIGHT + at
    known = {"day": day_of(start), "queue": "mail", "window": window, "start_ms": start, "name": "*"}
    return {**known, "arrivals": 0, "completed": 0, "failed": 0, "retries": 0, **more}


def weeks(values: Iterable[Mapping[str, Any]], at: int = 0) -> list[Row]:
    """Hours one week apart, the last of them `at` ms after midnight, and the minute that follows it."""
    given = list(values)
    rows = [metric(at - WEEK * (len(given) - 1 - n), "hour", **one) for n, one in enumerate(given)]
    return [*rows, metric(at + HOUR)]


def job(job_id: str, created: int, started: int, ended: int, **more: Any) -> Row:
    """A row of `jobs`; times are ms since its creation, that is since midnight."""
    at = MIDNIGHT + created
    known: Row = {"job_id": job_id, "first_id": f"{job_id}-0", "name": job_id, "state": "completed"}
    return {**known, "created_ms": at, "started_ms": at + started, "ended_ms": at + ended, **more}


def child(job_id: str, created: int, started: int, ended: int, parent: str = "sum", **more: Any) -> Row:
    """A row of `flows`: its parent is a job of the queue `top`."""
    return {**job(job_id, created, started, ended), "parent_id": parent, "parent_queue": "top", **more}


def firing(schedule: str, due: int, **more: Any) -> Row:
    """A row of `firings`: a run that began 5 ms late."""
    at = MIDNIGHT + due
    known: Row = {"queue": "cron", "schedule": schedule, "first_id": f"{at}-0", "state": "completed"}
    return {**known, "expected_ms": at, "started_ms": at + 5, "late_ms": 5, **more}
