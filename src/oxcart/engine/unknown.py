"""Jobs whose names have no handler in a worker: put off until some worker has one, and told of once a name.

In a fleet that is being deployed, or of several languages, that is nobody's fault.

May touch: nothing.
"""

from __future__ import annotations

import logging

from oxcart.broker.port import Outcome
from oxcart.engine.running import RunningJob
from oxcart.engine.verdict import Verdict

log = logging.getLogger("oxcart.worker")

#: How long such a job is put off, in ms; doubled with each start, up to the last.
DELAY = (1_000, 60_000)
#: How many names are told of, and remembered for it.
MOST = 1_000


class UnknownNames:
    """The job names that a worker has met without a handler.

    Args:
        verdict: Makes outcomes.
    """

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self._told: set[str] = set()

    def outcome_of(self, job: RunningJob, queue: str) -> Outcome:
        """What becomes of such a job: put off, unless it must not run in any case."""
        early = self._verdict.before_start(job)
        if early is not None:
            return early
        if job.name not in self._told and len(self._told) < MOST:
            self._told.add(job.name)
            log.warning(
                "queue %s: no handler for job name %r; its jobs are put off until a worker has one",
                queue,
                job.name,
            )
        first, last = DELAY
        return self._verdict.snoozed(job, min(first * 2 ** min(job.fencing - 1, 30), last))
