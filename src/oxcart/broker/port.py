"""The port between storage and engine: what a broker can do, in a dozen batched verbs.

A broker is one queue on one server. Every verb that takes several items answers each of them for itself,
and no item's fault touches another. Verbs that change something may be repeated after a lost answer:
the broker does so by itself and the server answers a repeat from memory (DESIGN §4).

Codes that stand for an item: 1 done, 2 done but the job's parent could not be told, 0 nothing to do (an id
that exists, no children to wait for), below zero a refusal
(``oxcart.model.errors.error_for_code``), a text where the server refused that one item.

May touch: nothing; values and a protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from oxcart.broker.capabilities import Capabilities
from oxcart.model.errors import OxcartError
from oxcart.model.job import Job
from oxcart.model.masking import masked
from oxcart.model.options import JobOptions

if TYPE_CHECKING:
    from oxcart.broker.bullmq.registry import WorkerRecord
    from oxcart.broker.caller import Caller
    from oxcart.broker.clock import ServerClock
    from oxcart.broker.connection import Server
    from oxcart.broker.sealing import Sealer

Code = int | str

#: An outcome over this size goes alone.
LARGE_OUTCOME = 262_144
#: Why a job is a dead letter that no worker could decode, in the words of ``Outcome.dead``.
UNDECODABLE = "undecodable"
#: Why a job ended whose lifetime is over.
LIFETIME_OVER = "the job's lifetime is over"


class Ask(msgspec.Struct, frozen=True):
    """What a worker asks for when it claims.

    Attributes:
        count: How many jobs at most; 0 claims nothing.
        lock_ms: How long the lease lasts without a renewal.
        worker: The worker's name, written to the job; empty for none.
        limit_max: At most so many jobs ...
        limit_duration: ... in so many ms over all workers; None for no limit of the worker's own.
        max_bytes: Stop claiming when payloads reach this size.
        spell_us: Stop claiming when the call has held the server for about so many microseconds; 0 for no
            limit. Some jobs are claimed in any case.
        metrics: For so many minutes it is kept how many jobs ended in each; 0 counts nothing.
        lanes: Lanes of the queue to choose from, by their names within it, the queue itself as ``base``;
            none to claim from this queue. Those who have the same to offer are taken in this order.
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


#: Asks for no job at all.
NOTHING = Ask(count=0)


class ClaimedJob(msgspec.Struct):
    """A job in the hands of a worker: its raw record, and the lease that proves the hold.

    Attributes:
        id: The job's id.
        token: The lease; new for every claim.
        starts: How often the job was started, this time included: the fencing number.
        started_ms: When this start was.
        fields: The job's hash as it was before the claim. The engine reads a job in BullMQ's field names;
            another protocol's broker tells its records in them.
    """

    id: str
    token: str
    starts: int
    started_ms: int
    fields: dict[bytes, bytes]

    def __repr__(self) -> str:
        return masked(self, "fields")

    @property
    def earlier(self) -> int:
        """Attempts ended so far, for the ``Outcome``; -1 where more hangs on its end."""
        fields = self.fields
        if (
            b"deid" in fields
            or b"ox:history" in fields
            or b"ox:lifetime" in fields
            or b"attemptsMade" in fields
        ):
            return -1
        ended = fields.get(b"atm", b"0")
        return int(ended) if ended.isdigit() and len(ended) <= 15 else -1


class Claimed(msgspec.Struct):
    """The answer to a claim.

    Attributes:
        jobs: What was claimed.
        limited_ms: Ask again after so many ms: a rate limit is reached. 0 for no limit.
        due_ms: Time at which the next delayed job is due, where nothing more is ready now; the time of the
            claim, where many are due; 0 for none.
        closed: The queue is paused or at its concurrency.
        active: How many jobs of the queue are active.
        orphans: Ids that stood in a list without a job; they were dropped. Also ids that are no text, whose
            jobs no worker of ours can hold; they stay.
        repeated: The answer came from the server's memory.
        more: The queue was not seen to its end: ask again, though there were fewer jobs than asked for. The
            call had taken its time, or of a choice of lanes others came first.
        lane: Where there was a choice of lanes: which it is, by its place in ``Ask.lanes``; None for none.
        shut: All of the lanes are closed, because the queue that they belong to is.
        empty: The lanes that had nothing, by their places, and when their next delayed jobs are due, or 0.
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


class Outcome(msgspec.Struct):
    """How an attempt ended.

    Attributes:
        kind: ``c`` completed, ``f`` failed for good, ``r`` retry now, ``d`` delay, ``w`` give back,
            ``h`` wait for its children, ``l`` give back and hold the queue.
        id: The job.
        token: The lease under which it ran.
        starts: The fencing number of the claim; -1 to insist on a live lease.
        at_ms: When it ended; 0 for the time at which the server learns of it, which ``finish`` sets here.
        value: Completed: the result as JSON. Otherwise the reason, as text; empty keeps the old one.
        stack: The stack traces as a JSON list.
        retention: What to keep of finished jobs: ``""`` all, or ``count:age:limit``.
        attempts: Failed: how many attempts the job had.
        category: Failed or to be retried: why, as one of the model's categories.
        code: Failed or to be retried: the application's own word for the kind of failure.
        dead: Failed: why it is a dead letter though attempts are left: ``lifetime``, ``dependency``,
            ``undecodable``. The last leaves the job's counts and stack traces as they are.
        delay_ms: Delayed: how long. Held: for how long.
        counts: Delayed: whether this was an attempt.
        lifo: Retry now: in front of the others.
        earlier: Completed or failed: how many attempts had ended before, as the claimed record tells it;
            -1 where the server must look.
    """

    kind: str
    id: str
    token: str
    starts: int
    at_ms: int = 0
    value: bytes = b""
    stack: bytes = b""
    retention: str = ""
    attempts: int = 0
    category: str = ""
    code: str = ""
    dead: str = ""
    delay_ms: int = 0
    counts: bool = True
    lifo: bool = False
    earlier: int = -1

    def __repr__(self) -> str:
        return masked(self, "value", "stack")


class Lease(msgspec.Struct, frozen=True):
    """What is needed to renew a hold on a job."""

    id: str
    token: str
    starts: int = -1


class Recovered(msgspec.Struct):
    """The answer to a stalled check: which jobs came back.

    Attributes:
        ids: Jobs that wait for a worker again.
        ran: False when it was not yet time.
        wait_ms: Ms until the next check, where that is not the interval: it was not yet time, or the server
            was away and workers renew first.
    """

    ids: list[str]
    ran: bool
    wait_ms: int = 0


class Outage(msgspec.Struct, frozen=True):
    """When the server counts as having been away, and how long no job is taken back then.

    Attributes:
        silence_ms: Ms without a sign of life of any worker after which the server counts as having been away.
            Shorter than the outage in which a lease that is renewed in time could run out.
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


class Broker(Protocol):
    """One queue's storage. See the module for what all verbs have in common."""

    @property
    def queue(self) -> str:
        """The queue's name."""

    def encode(self, name: str, data: Any, options: JobOptions) -> Any:
        """Checks and encodes a job for ``add``; raises before anything is written."""

    async def add(
        self, jobs: Sequence[Any], *, timeout: float | None = None, replicated: bool = False
    ) -> list[Added]:
        """Adds encoded jobs, in order; with ``replicated`` a replica has them when it returns."""

    async def claim(self, ask: Ask) -> Claimed:
        """Takes ready jobs."""

    async def finish(self, outcomes: Sequence[Outcome], ask: Ask = NOTHING) -> tuple[list[Code], Claimed]:
        """Ends attempts and claims into the freed slots."""

    async def extend(self, leases: Sequence[Lease], lock_ms: int) -> list[str]:
        """Renews leases; returns the ids that were refused."""

    async def recover(
        self, *, max_stalled: int = 1, interval_ms: int = 30_000, outage: Outage | None = None
    ) -> Recovered:
        """Brings back jobs whose worker is gone.

        Args:
            max_stalled: How often a job may be brought back before it is failed.
            interval_ms: Ms between checks of all workers.
            outage: When to wait for renewals first; None to check in any case.
        """

    async def appear(self, outage: Outage) -> bool:
        """Gives a sign of life; returns whether the one before had not run out yet."""

    async def promote(self, most: int = 250) -> tuple[int, int]:
        """Lets due jobs through; returns how many, and when the next is due (0 for none)."""

    async def pause(self) -> None:
        """Stops handing out jobs."""

    async def resume(self) -> None:
        """Hands out jobs again."""

    async def is_paused(self) -> bool:
        """Whether the queue is paused."""

    async def set_progress(self, job_id: str, progress: Any) -> None:
        """Writes a job's progress."""

    async def add_log(self, job_id: str, lines: Sequence[str], keep: int | None) -> int:
        """Appends to a job's log; returns its length."""

    async def logs(self, job_id: str, first: int = 0, last: int = -1) -> list[str]:
        """Reads a job's log."""

    async def clear_logs(self, job_id: str, keep: int = 0) -> None:
        """Drops a job's log but for the newest lines."""

    async def update_data(self, job_id: str, data: Any) -> None:
        """Replaces a job's payload."""

    async def set_checkpoint(self, job_id: str, token: str, body: bytes) -> None:
        """Saves how far a running job has come, for whoever holds it."""

    async def change_priority(self, job_id: str, priority: int, *, lifo: bool = False) -> None:
        """Changes a job's priority."""

    async def update_job(self, job_id: str, fields: Mapping[str, str], priority: int | None) -> None:
        """Changes fields of ours (an empty value takes one away) and the priority, until a job has ended."""

    async def change_delay(self, job_id: str, delay_ms: int) -> None:
        """Changes a delayed job's delay."""

    async def promote_job(self, job_id: str) -> None:
        """Lets a delayed job run now."""

    async def retry_job(self, job_id: str, state: str, *, lifo: bool = False, reset: bool = False) -> None:
        """Lets a finished job run again."""

    async def remove_job(self, job_id: str, *, children: bool = False) -> None:
        """Removes a job."""

    async def get(self, job_ids: Sequence[str], *, lenient: bool = False) -> list[Job | None]:
        """Reads jobs; sealed values that do not open raise, or stay sealed where ``lenient``."""

    async def look(self, job_ids: Sequence[str], *, lenient: bool = False) -> list[Job | None]:
        """As ``get``, with the jobs' formal states."""

    async def states(self, job_ids: Sequence[str]) -> list[str]:
        """Tells the wire states of jobs."""

    async def counts(self) -> Mapping[str, int]:
        """How many jobs are in each wire state."""

    async def page(self, state: str, first: int, last: int, *, oldest: bool = False) -> list[Job]:
        """Reads a range of jobs of a state."""


class Ended(msgspec.Struct, frozen=True):
    """What is known of a job's end.

    Attributes:
        known: Whether there is a record of the job at all.
        finished: Whether it has ended.
        value: The result as JSON, where it completed.
    """

    known: bool
    finished: bool
    value: bytes | None = None


class QueueKeys(Protocol):
    """The keys that the engine and a queue's face use themselves."""

    @property
    def prefix(self) -> str:
        """What stands before the queue's name."""

    @property
    def tagged(self) -> bool:
        """Whether the keys carry a hash tag of our making, for a cluster."""

    @property
    def base(self) -> str:
        """What all keys of the queue begin with."""

    def marker(self) -> str:
        """Sorted set: the wake-up tokens that idle workers block on."""

    def events(self) -> str:
        """Stream: what happened to the queue's jobs."""

    def job(self, job_id: str) -> str:
        """Hash: what a worker of ours writes down of a job."""

    def lanes(self) -> str:
        """The targets of the queue's jobs, as their lanes are named; absent where none has one."""

    def watcher(self) -> str:
        """String: the worker that looks for jobs that no worker can take."""

    def cancellations(self, client_id: str) -> str:
        """Sorted set: the jobs that a worker is asked to cancel."""

    def client_name(self, suffix: str = "") -> str:
        """The name of a worker's connection."""


class ServedBroker(Broker, Protocol):
    """A broker on a server: what the engine and a queue's face need beside the verbs.

    Attributes:
        base: The queue that this one is a lane of; itself where it is none.
        lane: Its name as a lane; None where it is none.
        slot: The cluster slot of all the queue's keys; None on a single server.
        next_expiry: When the next lifetime is over, in ms, as the last ``promote`` saw it; 0 for none.
    """

    base: str
    lane: str | None
    slot: int | None
    next_expiry: int

    @property
    def capabilities(self) -> Capabilities:
        """What the protocol can express."""

    @property
    def server(self) -> Server:
        """Where the queue lives."""

    @property
    def caller(self) -> Caller:
        """The connection."""

    @property
    def keys(self) -> QueueKeys:
        """The queue's keys."""

    @property
    def sealer(self) -> Sealer | None:
        """Seals and opens values; None where the queue has no keys."""

    @property
    def clock(self) -> ServerClock:
        """Estimates the server's time in ms."""

    async def now(self) -> int:
        """The server's time in ms."""

    async def close(self) -> None:
        """Closes the connection."""

    async def add_each(
        self, jobs: Sequence[Any], *, timeout: float | None = None, replicated: bool = False
    ) -> list[Added | OxcartError]:
        """As ``add``, with the error of a refused job in its place."""

    async def counts_over_lanes(self) -> dict[str, int]:
        """How many jobs of the queue and of its lanes are in each wire state."""

    async def workers(self) -> list[WorkerRecord]:
        """The workers of the queue that live."""

    async def unroutable(self) -> dict[str, int]:
        """How many jobs wait whose targets no living worker fits, by what they ask for."""

    async def unroutable_page(self, state: str, first: int, last: int, *, oldest: bool = False) -> list[Job]:
        """Reads a range of such jobs of a state, or of each of their lanes where lanes are queues."""

    async def ended(self, job_id: str) -> Ended:
        """What is known of a job's end."""

    async def expire(self) -> int:
        """Ends jobs whose lifetime is over; returns how many."""
