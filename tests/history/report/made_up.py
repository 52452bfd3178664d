"""Reports made up without Spark: any number of queues, any span."""

from __future__ import annotations

import math
from typing import Any

from oxcart.history.report.buckets import width_of
from oxcart.history.report.figures import Report
from tests.history.lakes import MIDNIGHT

TEN = MIDNIGHT + 36_000_000


def point(queue: str, at: int, number: int, **more: Any) -> dict[str, Any]:
    """The figures of a bucket."""
    wave = 1 + math.sin(number / 9)
    return {
        "queue": queue,
        "start_ms": at,
        "arrivals": int(1000 * wave),
        "completed": int(950 * wave),
        "failed": int(20 * wave),
        "wait_p50": 12.5 * wave,
        "wait_p99": 1234.5 * wave,
        "backlog_ready": int(400 * wave),
        "backlog_active": 20,
        "backlog_delayed": 7,
        **more,
    }


def row(queue: str, number: int = 0, name: str = "*", **more: Any) -> dict[str, Any]:
    """The figures of a day."""
    known = {"arrivals": 100_000 - number, "completed": 99_000, "failed": 0, "retries": 3, "stalls": 0}
    spent = {"wait_p50": 12.0, "wait_p99": 1500.5, "run_p50": 80.0, "run_p99": 950.0, "backlog_ready": 12}
    return {"queue": queue, "name": name, **known, **spent, **more}


def made_up(queues: int = 1, span_ms: int = 86_400_000, *, begin: int = MIDNIGHT, **more: Any) -> Report:
    """A report of some queues, of which as many have charts as the report collects."""
    width = width_of(span_ms)
    names = [f"service-{number:05d}-notifications" for number in range(queues)]
    points = [
        point(queue, begin + number * width, number + place)
        for place, queue in enumerate(names[:60])
        for number in range(math.ceil(span_ms / width))
    ]
    given: dict[str, Any] = {
        "day": "2026-11-02",
        "version": 7,
        "queues": [row(queue, number) for number, queue in enumerate(names)],
        "names": [row(queue, name=f"job-{number}") for queue in names[:20] for number in range(10)],
        "points": points,
        "width": width,
        "span": (begin, begin + math.ceil(span_ms / width) * width),
        "failures": [],
        "gaps": [],
        "states": [],
        "flows": [],
        "schedules": [],
    }
    return Report(**{**given, **more})
