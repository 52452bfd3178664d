"""Delays jobs whose names have no handler in a worker until some worker has one.

In a fleet that is being deployed, or that has several languages, such jobs are normal.
"""

from __future__ import annotations

import logging

from oxcart.broker.port import Outcome
from oxcart.engine.running import RunningJob
from oxcart.engine.verdict import Verdict

log = logging.getLogger("oxcart.worker")

#: Ms by which such a job is delayed: doubled with each start, up to the second.
DELAY = (1_000, 60_000)
#: How many names are logged, each once.
MOST = 1_000


class UnknownNames:
    """The job names that a worker has met without a handler.

    Args:
        verdict: Makes outcomes.
    """

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self._logged: set[str] = set()

    def outcome_of(self, job: RunningJob, queue: str) -> Outcome:
        """Returns the outcome of such a job: delayed, unless it must not run in any case."""
        early = self._verdict.before_start(job)
        if early is not None:
            return early
        if job.name not in self._logged and len(self._logged) < MOST:
            self._logged.add(job.name)
            log.warning(
                "queue %s: no handler for job name %r; its jobs are delayed until a worker has one",
                queue,
                job.name,
                extra=job.log_fields(),
            )
        first, last = DELAY
        outcome = self._verdict.snoozed(job, min(first * 2 ** min(job.fencing - 1, 30), last))
        outcome.unhandled = True
        return outcome
