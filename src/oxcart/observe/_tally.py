"""A histogram that costs as little as a number: counts in a list, converted to Prometheus' form on demand.

The client library's own histogram takes a lock and walks its buckets in Python for every value. That costs
ten times as much (4.6 µs against 0.4 µs with its counter), which a worker with 20 000 jobs a second would
notice. Values come from one event loop, so no lock is needed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

#: Seconds, from a cache lookup to an hour of video.
JOB_SECONDS = (
    0.001,
    0.005,
    0.01,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    1800.0,
    3600.0,
)
#: Seconds from ready to start, from an idle worker to a backlog of a day.
WAIT_SECONDS = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 21_600.0, 86_400.0)
#: Seconds of a call to the server; alerts watch 10 ms.
CALL_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
#: Jobs per call.
BATCH_SIZES = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0)


class Tally:
    """Counts values by bucket.

    Args:
        bounds: The upper bounds of the buckets, ascending; an unbounded bucket is added.
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Counts a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def sum(self) -> float:
        """The sum of all values."""
        return self._sum

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Returns upper bound and cumulative count of each bucket, as Prometheus expects them."""
        total = 0
        found = []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            found.append(("+Inf" if bound == float("inf") else repr(float(bound)), float(total)))
        return found
