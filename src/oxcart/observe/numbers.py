"""The numbers of a queue and of its job names, as one process counted them."""

from __future__ import annotations

from collections import defaultdict

from oxcart.broker.port import UNDECODABLE, Outcome, OutcomeKind
from oxcart.engine.running import RunningJob
from oxcart.observe._tally import BATCH_SIZES, CALL_SECONDS, JOB_SECONDS, WAIT_SECONDS, Tally

#: Names of jobs per queue that have numbers of their own; later ones share those of `OTHER`. Any producer may
#: make up names, and every label value costs the scraper memory.
MOST_NAMES = 200
OTHER = "other"

#: The status of an ended attempt, by the kind of its outcome; ``refused`` if the server did not accept it.
STATUSES = {
    OutcomeKind.COMPLETED: "completed",
    OutcomeKind.FAILED: "failed",
    OutcomeKind.RETRY: "retried",
    OutcomeKind.DELAY: "retried",
    OutcomeKind.GIVE_BACK: "given_back",
    OutcomeKind.HOLD_QUEUE: "given_back",
    OutcomeKind.AWAIT_CHILDREN: "waiting_children",
}
SNOOZED = "snoozed"
REFUSED = "refused"


def status_of(outcome: Outcome) -> str:
    """Returns the status of an ended attempt whose outcome the server accepted."""
    if outcome.kind == OutcomeKind.DELAY and not outcome.counts:
        return SNOOZED
    return STATUSES[outcome.kind]


def is_dead_letter(outcome: Outcome) -> bool:
    """Returns whether an attempt's end makes its job a dead letter."""
    if outcome.kind != OutcomeKind.FAILED:
        return False
    return bool(outcome.dead) or outcome.category not in ("permanent", "cancelled")


class JobNumbers:
    """The numbers of the jobs of one name in one queue."""

    __slots__ = ("dead", "duration", "statuses", "wait")

    def __init__(self) -> None:
        self.statuses: defaultdict[str, int] = defaultdict(int, dict.fromkeys(("completed", "failed"), 0))
        self.duration = Tally(JOB_SECONDS)
        self.wait = Tally(WAIT_SECONDS)
        self.dead = 0


class QueueNumbers:
    """The numbers of one queue."""

    __slots__ = (
        "claimed",
        "finished",
        "heartbeats",
        "heartbeats_failed",
        "jobs",
        "lock_extend",
        "quarantined",
        "retries",
        "skipped",
        "stalled",
    )

    def __init__(self) -> None:
        self.jobs = {OTHER: JobNumbers()}
        self.retries: defaultdict[str, int] = defaultdict(int)
        self.finished = Tally(BATCH_SIZES)
        self.claimed = Tally(BATCH_SIZES)
        self.lock_extend = Tally(CALL_SECONDS)
        self.heartbeats = 0
        self.heartbeats_failed = 0
        self.quarantined = 0
        self.stalled = 0
        self.skipped = 0

    def new_name(self, name: str) -> JobNumbers:
        """Returns the numbers of a name that has none yet."""
        if len(self.jobs) > MOST_NAMES:  # `OTHER` is one of them
            return self.jobs[OTHER]
        return self.jobs.setdefault(name, JobNumbers())

    def started(self, job: RunningJob) -> None:
        """Counts how long a job waited from the moment it was ready until it started."""
        if (waited := job.waited_ms) is not None:
            of_name = self.jobs.get(job.name) or self.new_name(job.name)
            of_name.wait.add(waited / 1000)

    def ended_badly(self, of_name: JobNumbers, outcome: Outcome) -> None:
        """Counts a retry by its category, a dead letter and a quarantined job."""
        if outcome.kind != OutcomeKind.FAILED:
            self.retries[outcome.category or "temporary"] += 1
            return
        if outcome.dead == UNDECODABLE:
            self.quarantined += 1
        if is_dead_letter(outcome):
            of_name.dead += 1
