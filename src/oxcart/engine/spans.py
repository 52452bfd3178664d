"""The spans of a worker: its claims and its attempts. The executor runs handlers within the latter."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from oxcart.broker.port import Outcome
from oxcart.engine.running import RunningJob
from oxcart.engine.source import Source
from oxcart.engine.station import Station
from oxcart.engine.tracing import run_span


class WorkerSpans:
    """Traces the jobs of a worker's queues.

    Args:
        queues: The queues; those without tracing have no spans.
    """

    def __init__(self, queues: Mapping[int, Source]) -> None:
        self._queues = queues

    @classmethod
    def of(cls, queues: Mapping[int, Source]) -> WorkerSpans | None:
        """Returns the spans of a worker; None if none of its queues has tracing."""
        return cls(queues) if any(queue.tracing is not None for queue in queues.values()) else None

    def claimed(self, station: Station, jobs: Sequence[RunningJob], began: float) -> None:
        """A call that began then (`time.perf_counter`) claimed jobs."""
        if (tracing := self._queues[station.root.index].tracing) is not None:
            broker = station.broker
            tracing.claimed(broker.capabilities.protocol, broker.base, jobs, time.perf_counter() - began)

    def start(self, station: Station, job: RunningJob) -> None:
        """A handler is about to run."""
        if (tracing := self._queues[station.root.index].tracing) is not None:
            span = tracing.run(station.broker.capabilities.protocol, job)
            if span is not None:
                job.span = span

    @staticmethod
    def ending(done: Callable[[RunningJob, Outcome], None]) -> Callable[[RunningJob, Outcome], None]:
        """Returns the receiver of outcomes, which ends their spans first."""

        def ended(job: RunningJob, outcome: Outcome) -> None:
            if (span := run_span(job)) is not None:
                span.ended(outcome)
            done(job, outcome)

        return ended


def ended_span(job: RunningJob, outcome: Outcome) -> Outcome:
    """Ends the span of an attempt, if it has one; returns the outcome."""
    if (span := run_span(job)) is not None:
        span.ended(outcome)
    return outcome
