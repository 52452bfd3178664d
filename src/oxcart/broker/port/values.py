"""The values that pass between storage and engine, the same for every protocol."""

from __future__ import annotations

from typing import Any

import msgspec

from oxcart.broker.port.claimed import ClaimedJob
from oxcart.broker.port.codes import OutcomeKind
from oxcart.model.masking import masked
from oxcart.model.retention import Retention

#: An outcome over this size is sent alone.
LARGE_OUTCOME = 262_144
#: Why a job that no worker could decode is a dead letter, in the words of ``Outcome.dead``.
UNDECODABLE = "undecodable"
#: The reason of a job that ended because its lifetime expired.
LIFETIME_OVER = "the job's lifetime is over"


#: An encoded job: its id, and what only the broker that encoded it reads.
Encoded = tuple[str, Any]


class Ask(msgspec.Struct, frozen=True):
    """The arguments of a claim.

    Attributes:
        count: How many jobs at most; 0 claims nothing.
        lock_ms: How long the lease lasts without a renewal.
        worker: The worker's name, written to the job; empty for none.
        limit_max: At most so many jobs ...
        limit_duration: ... in so many ms over all workers; None if the worker has no limit.
        max_bytes: Stop claiming when payloads reach this size.
        spell_us: Stop claiming when the call has blocked the server for about so many microseconds; 0 for no
            limit. Some jobs are claimed in any case.
        metrics: For how many minutes to keep the counts of ended jobs; 0 counts nothing.
        lanes: Lanes of the queue to choose from, by their names within it, the queue itself as ``base``;
            none to claim from this queue. Among lanes with equal first jobs this order decides.
        version: The version of the program that finishes attempts with this call; empty for none. A pipeline
            that reads the queue records it.
        isolates: Whether the worker runs jobs that were lost before as ``Parts.suspects`` describes.
    """

    count: int = 1
    lock_ms: int = 30_000
    worker: str = ""
    limit_max: int | None = None
    limit_duration: int | None = None
    max_bytes: int = 1_048_576
    spell_us: int = 0
    metrics: int = 0
    lanes: tuple[str, ...] = ()
    version: str = ""
    isolates: bool = False


#: Claims no job.
NOTHING = Ask(count=0)


class Claimed(msgspec.Struct):
    """The answer to a claim.

    Attributes:
        jobs: The claimed jobs.
        limited_ms: Ask again after so many ms: a rate limit is reached. 0 for no limit.
        due_ms: Time at which the next delayed job is due, if nothing more is ready now; the time of the
            claim, if many are due; 0 for none.
        closed: The queue is paused or at its concurrency.
        active: How many jobs of the queue are active.
        orphans: Ids without a job that were in a list; they were dropped. Also ids that are no text, whose
            jobs no worker of ours can lease; they stay.
        repeated: The answer came from the server's journal.
        more: There may be more: ask again, even if there were fewer jobs than asked for. The call reached its
            time limit, or jobs of other lanes came first.
        lane: With a choice of lanes: the chosen one, by its index in ``Ask.lanes``; None for none.
        shut: All of the lanes are closed, because their base queue is.
        empty: The empty lanes, by their indexes, and when their next delayed jobs are due, or 0.
        suspects: Whether one of the jobs was lost before.
    """

    jobs: list[ClaimedJob]
    limited_ms: int = 0
    due_ms: int = 0
    closed: bool = False
    active: int = 0
    orphans: list[str] = []
    repeated: bool = False
    more: bool = False
    lane: int | None = None
    shut: bool = False
    empty: list[tuple[int, int]] = []
    suspects: bool = False


class Outcome(msgspec.Struct):
    """How an attempt ended.

    Attributes:
        kind: What happens to the job.
        id: The job.
        token: The lease under which it ran.
        starts: The fencing number of the claim; -1 to require a live lease.
        at_ms: When it ended; 0 for the server's time of the call, which ``finish`` sets here.
        value: Completed: the result as JSON. Otherwise the reason, as text; empty keeps the old one.
        stack: The stack traces as a JSON list.
        retention: Which finished jobs to keep; None for the queue's own retention.
        attempts: Failed: how many attempts the job had.
        category: Failed or to be retried: why, as one of the model's categories.
        code: Failed or to be retried: the application's own word for the kind of failure.
        dead: Failed: why it is a dead letter although attempts are left: ``lifetime``, ``dependency``,
            ``undecodable``. The last leaves the job's counts and stack traces as they are.
        delay_ms: Delayed: how long. Held: for how long.
        counts: Delayed: whether this was an attempt.
        waits: Delayed without being an attempt: the signal that ends the delay early; empty for none.
        unhandled: Delayed without being an attempt: whether the reason is that the worker has no handler for
            the job's name.
        lifo: Retry now: in front of the others.
        claim: The claimed job that it ends; its fields spare brokers a read. None if
            it was not kept.
        error: The exception that ended the attempt, for observers; it is not stored.
    """

    kind: OutcomeKind
    id: str
    token: str
    starts: int
    at_ms: int = 0
    value: bytes = b""
    stack: bytes = b""
    retention: Retention | None = None
    attempts: int = 0
    category: str = ""
    code: str = ""
    dead: str = ""
    delay_ms: int = 0
    counts: bool = True
    lifo: bool = False
    waits: str = ""
    unhandled: bool = False
    claim: ClaimedJob | None = None
    error: BaseException | None = None

    def __repr__(self) -> str:
        return masked(self, "value", "stack")


class Lease(msgspec.Struct, frozen=True):
    """The lease of a job, as needed to renew it.

    Attributes:
        id: The job's id.
        token: The token of the claim.
        starts: The fencing number of the claim; -1 if it is not known.
    """

    id: str
    token: str
    starts: int = -1


class Recovered(msgspec.Struct):
    """The answer to a stalled check: the recovered jobs.

    Attributes:
        ids: Jobs that wait for a worker again.
        ran: False when it was not yet time.
        wait_ms: Ms until the next check, if that is not the interval: it was not yet time, or the server
            was away and workers renew first.
    """

    ids: list[str]
    ran: bool
    wait_ms: int = 0


class Outage(msgspec.Struct, frozen=True):
    """When the server counts as having been away, and how long no job is recovered then.

    Attributes:
        silence_ms: Ms without a sign of life of any worker after which the server counts as having been away.
            Shorter than an outage in which a lease that is renewed in time could expire.
        grace_ms: Ms that workers need to renew once the server is back.
    """

    silence_ms: int
    grace_ms: int


class Added(msgspec.Struct):
    """The answer to an add.

    Attributes:
        id: The job's id.
        created: False when a job of this id existed, or another job owns its deduplication window or key.
        duplicate: Whether it is a job that was added before with the same idempotency key.
        at_ms: The server's time of the add.
    """

    id: str
    created: bool
    duplicate: bool = False
    at_ms: int = 0


class Ended(msgspec.Struct, frozen=True):
    """The stored end of a job.

    Attributes:
        known: Whether there is a record of the job at all.
        finished: Whether it has ended.
        value: The result as JSON, if it completed.
        started: Whether it was started before, so that the stream may hold the end of an earlier run.
    """

    known: bool
    finished: bool
    value: bytes | None = None
    started: bool = False
