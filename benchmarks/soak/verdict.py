"""What a soak measured, and whether it stayed within the bounds."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

#: MiB by which the worker that stays (with its renewer), and the server, may grow after the first fifth.
WORKER_BOUND, SERVER_BOUND = 12.0, 12.0
#: Keys that are not jobs, at most: settings, indexes, answers of calls, keys that expire.
KEYS_BOUND = 2_000
WARM = 0.2
#: Jobs from which on memory is compared: before, pools, caches and the kept 1 000 jobs of queues fill.
LONG = 100_000


@dataclass(frozen=True)
class Sample:
    """One sample: memory in MiB, and keys on the server.

    Attributes:
        jobs: Jobs added so far.
        worker: Memory of the worker that stays, and of its renewer.
        server: Memory that the server uses for data, less that of jobs that wait.
        keys: Keys on the server.
    """

    jobs: int
    worker: float
    server: float
    keys: int


@dataclass(frozen=True)
class Finding:
    """One bound, and what was measured."""

    what: str
    measured: str
    bound: str
    holds: bool


def judge(samples: list[Sample], jobs: int) -> list[Finding]:
    """Compares the memory after the first fifth with its bounds; a short soak judges keys alone."""
    if jobs < LONG:
        return []
    warm = [one for one in samples if one.jobs >= WARM * jobs]
    if len(warm) < 3:
        return [Finding("samples", f"{len(warm)} after the first fifth", "at least 3", False)]
    found = []
    for what, field, bound in (("worker", "worker", WORKER_BOUND), ("server", "server", SERVER_BOUND)):
        grown = growth([getattr(one, field) for one in warm])
        per_job = grown * 2**20 / max(1, warm[-1].jobs - warm[0].jobs)
        text = f"{grown:+.2f} MiB, {per_job:+.1f} bytes per job"
        found.append(Finding(f"memory of the {what}", text, f"{bound:g} MiB", grown <= bound))
    return found


def growth(values: list[float]) -> float:
    """Returns the growth between the first and the last third, by their medians.

    One sample is at the mercy of a job that happens to be under way.
    """
    third = max(1, len(values) // 3)
    return statistics.median(values[-third:]) - statistics.median(values[:third])
