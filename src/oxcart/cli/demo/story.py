"""Statistics of a demo, computed from the queue's events."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oxcart.model.event import Event


@dataclass
class Story:
    """Counts and times of a demo. `record` takes the events in order.

    Attributes:
        completed: Jobs that completed.
        failed: Jobs that failed permanently.
        retries: Attempts beyond the first.
        stalled: Recovered jobs.
        by_worker: Jobs completed by each worker.
        waits: Milliseconds from ready to running, per attempt.
        runs: Milliseconds that each attempt ran.
    """

    completed: int = 0
    failed: int = 0
    retries: int = 0
    stalled: int = 0
    by_worker: Counter[str] = field(default_factory=Counter)
    waits: list[int] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)
    _ready: dict[str, int] = field(default_factory=dict)
    _running: dict[str, int] = field(default_factory=dict)
    _started: set[str] = field(default_factory=set)
    _ends: Counter[int] = field(default_factory=Counter)

    @property
    def ended(self) -> int:
        """Jobs that completed or failed."""
        return self.completed + self.failed

    def rate(self, now_ms: int) -> int:
        """Returns how many jobs ended in the last whole second before ``now_ms``."""
        return self._ends[now_ms // 1000 - 1]

    def record(self, event: Event) -> None:
        """Updates the statistics with the next event."""
        job, at = event.job_id, event.timestamp
        if job is None:
            return
        if event.name == "active":
            self._on_active(job, at)
        elif event.name in ("completed", "failed", "delayed", "waiting"):
            if job in self._running:
                self.runs.append(at - self._running.pop(job))
            if event.name == "waiting":
                self._ready[job] = at
        elif event.name == "stalled":
            self.stalled += 1
        if event.name == "completed":
            self.completed += 1
            self._ends[at // 1000] += 1
            if isinstance(event.return_value, dict):
                self.by_worker[str(event.return_value.get("worker"))] += 1
        elif event.name == "failed":
            self.failed += 1
            self._ends[at // 1000] += 1

    def _on_active(self, job: str, at: int) -> None:
        self._running[job] = at
        if job in self._ready:
            self.waits.append(at - self._ready.pop(job))
        if job in self._started:
            self.retries += 1
        self._started.add(job)

    def summary(self, jobs: int, seconds: float) -> dict[str, Any]:
        """Returns all statistics as a JSON document."""
        return {
            "jobs": jobs,
            "completed": self.completed,
            "failed": self.failed,
            "retries": self.retries,
            "stalled": self.stalled,
            "seconds": round(seconds, 2),
            "jobs_per_s": round(self.ended / seconds, 1) if seconds else 0.0,
            "wait_ms": {"p50": percentile(self.waits, 50), "p99": percentile(self.waits, 99)},
            "run_ms": {"p50": percentile(self.runs, 50), "p99": percentile(self.runs, 99)},
            "workers": dict(sorted(self.by_worker.items())),
        }


def percentile(values: list[int], percent: int) -> int:
    """Returns the nearest-rank percentile, or 0 without values."""
    if not values:
        return 0
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
