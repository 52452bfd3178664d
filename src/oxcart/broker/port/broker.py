"""The protocols of a broker: `Broker` has the verbs, `ServedBroker` adds the connection.

Every broker has all of these. What a protocol may lack is an optional part (`oxcart.broker.port.parts`): an
attribute that is None if the protocol lacks it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from oxcart.broker.capabilities import Capabilities
from oxcart.broker.port.codes import Code
from oxcart.broker.port.parts import Parts
from oxcart.broker.port.steps import Steps
from oxcart.broker.port.streams import EventStream, Inbox, WorkWait
from oxcart.broker.port.values import (
    NOTHING,
    Added,
    Ask,
    Claimed,
    Encoded,
    Ended,
    Lease,
    Outage,
    Outcome,
    Recovered,
)
from oxcart.model.errors import OxcartError
from oxcart.model.job import Job
from oxcart.model.options import JobOptions

if TYPE_CHECKING:
    from oxcart.broker.caller import Caller
    from oxcart.broker.cancellations import CancelRequest
    from oxcart.broker.clock import ServerClock
    from oxcart.broker.connection import Reconnect, Server
    from oxcart.broker.keyring import KeyRing
    from oxcart.broker.sealing import Sealer
    from oxcart.broker.workers import WorkerRecord
    from oxcart.model.target import Abilities


class Broker(Parts, Protocol):
    """One queue's storage; the package describes what all verbs have in common.

    Attributes:
        base: The base queue of a lane; its own name if it is no lane.
        lane: Its name as a lane; None if it is no lane.
    """

    base: str
    lane: str | None

    @property
    def queue(self) -> str:
        """The queue's name, or that of the lane."""

    @property
    def capabilities(self) -> Capabilities:
        """What the protocol can express."""

    @property
    def sealer(self) -> Sealer | None:
        """Seals and opens values; None if the queue has no keys."""

    @property
    def steps(self) -> Steps:
        """Durable steps of jobs, and signals for them."""

    @property
    def clock(self) -> ServerClock:
        """Estimates the server's time in ms."""

    # -- adding

    def encode(self, name: str, data: Any, options: JobOptions, trace: str | None = None) -> Encoded:
        """Checks and encodes a job for ``add``; raises before anything is written.

        Args:
            name: The job's name.
            data: Its payload.
            options: Its options.
            trace: The trace context that it carries if its options have none. Options that many jobs share
                stay shared this way.
        """

    async def add(
        self, jobs: Sequence[Encoded], *, timeout: float | None = None, replicated: bool = False
    ) -> list[Added]:
        """Adds encoded jobs, in order; with ``replicated`` a replica has them when it returns."""

    # -- running

    async def claim(self, ask: Ask) -> Claimed:
        """Claims ready jobs."""

    async def finish(self, outcomes: Sequence[Outcome], ask: Ask = NOTHING) -> tuple[list[Code], Claimed]:
        """Finishes attempts and claims into the freed slots."""

    async def renew(self, leases: Sequence[Lease], lock_ms: int) -> list[str]:
        """Renews leases; returns the ids that were refused."""

    async def recover(
        self, *, max_stalled: int = 1, interval_ms: int = 30_000, outage: Outage | None = None
    ) -> Recovered:
        """Recovers jobs whose worker is gone.

        Args:
            max_stalled: How often a job may be recovered before it fails.
            interval_ms: Ms between the checks of all workers together.
            outage: When to wait for renewals first; None to check at once.
        """

    async def appear(self, outage: Outage) -> bool:
        """Renews the queue's sign of life; returns whether the one before was still valid."""

    async def promote(self, most: int = 250) -> tuple[int, int]:
        """Promotes due jobs; returns how many, and when the next is due (0 for none)."""

    # -- the queue

    async def pause(self) -> None:
        """Stops claims."""

    async def resume(self) -> None:
        """Allows claims again."""

    async def is_paused(self) -> bool:
        """Whether the queue is paused."""

    async def kept_seconds(self) -> tuple[int | None, int | None]:
        """Returns how long completed and failed jobs stay that have no retention; None for ever."""

    # -- jobs

    async def set_progress(self, job_id: str, progress: Any) -> None:
        """Writes a job's progress."""

    async def update_data(self, job_id: str, data: Any) -> None:
        """Replaces a job's payload."""

    async def set_checkpoint(self, job_id: str, token: str, body: bytes) -> None:
        """Stores a running job's checkpoint, under its lease."""

    async def change_delay(self, job_id: str, delay_ms: int) -> None:
        """Changes a delayed job's delay."""

    async def promote_job(self, job_id: str) -> None:
        """Promotes a delayed job now."""

    async def retry_job(self, job_id: str, state: str, *, lifo: bool = False, reset: bool = False) -> None:
        """Lets a finished job run again."""

    async def remove_job(self, job_id: str, *, children: bool = False) -> None:
        """Removes a job."""

    # -- reading

    async def get(self, job_ids: Sequence[str], *, lenient: bool = False) -> list[Job | None]:
        """Reads jobs; a sealed value that does not open raises, or stays sealed if ``lenient``."""

    async def look(self, job_ids: Sequence[str], *, lenient: bool = False) -> list[Job | None]:
        """As ``get``, with the jobs' formal states."""

    async def states(self, job_ids: Sequence[str]) -> list[str]:
        """Returns the wire states of jobs."""

    async def counts(self) -> Mapping[str, int]:
        """Returns how many jobs are in each wire state."""

    async def page(self, state: str, first: int, last: int, *, oldest: bool = False) -> list[Job]:
        """Reads a range of jobs of a state."""

    async def ids_beginning(self, start: str, most: int) -> list[str]:
        """Returns the ids of jobs that begin with a text, sorted. Stops soon after ``most``."""


class QueueKeys(Protocol):
    """The keys that the engine and a queue's face use themselves."""

    @property
    def prefix(self) -> str:
        """The text before the queue's name."""

    @property
    def tagged(self) -> bool:
        """Whether the keys carry a hash tag that we add for a cluster."""

    @property
    def base(self) -> str:
        """The common beginning of all keys of the queue."""

    def marker(self) -> str:
        """Sorted set: the wake-up tokens that idle workers block on."""

    def events(self) -> str:
        """Stream: the events of the queue's jobs."""

    def job(self, job_id: str) -> str:
        """Hash: the fields that a worker of ours stores for a job."""

    def lanes(self) -> str:
        """The targets of the queue's jobs, by the names of their lanes; absent if no job has a target."""

    def watcher(self) -> str:
        """String: the worker that watches for jobs that no worker can take."""

    def inboxes(self, client_id: str) -> tuple[str, ...]:
        """Sorted sets: the jobs that a worker is asked to cancel."""

    def client_name(self, suffix: str = "") -> str:
        """The name of a worker's connection."""


class ServedBroker(Broker, Protocol):
    """A broker on a server: the members that the engine and a queue's face need beside the verbs.

    Attributes:
        slot: The cluster slot of all the queue's keys; None on a single server.
        next_expiry: When the next lifetime expires, in ms, as the last ``promote`` saw it; 0 for none.
    """

    slot: int | None
    next_expiry: int

    @property
    def server(self) -> Server:
        """The server that the queue is on."""

    @property
    def caller(self) -> Caller:
        """The connection."""

    @property
    def keys(self) -> QueueKeys:
        """The queue's keys."""

    @property
    def site(self) -> Hashable:
        """Identifies the server, and the slot on a cluster; one wait can span queues of equal sites."""

    @property
    def server_name(self) -> str:
        """Names the server in log lines."""

    def job_id_of(self, key: str) -> str | None:
        """Returns the id in the full key of a job of this queue; None for a key of another queue."""

    @property
    def known_url(self) -> str | None:
        """The URL of a cluster with the nodes that are known by now; None for a single server."""

    def open_events(self, *, unseals: bool = False) -> EventStream | None:
        """Opens the queue's event stream; None if the queue has none.

        Args:
            unseals: Whether it opens sealed values; one that does not open stays sealed.
        """

    def open_wait(self, brokers: Sequence[Any], worker: str) -> WorkWait:
        """Opens a worker's wait for jobs of some queues of this site."""

    def open_inbox(self, brokers: Mapping[int, Any]) -> Inbox:
        """Opens a worker's inbox for requests to cancel jobs of some queues of this site."""

    async def cancel_requests(self, attempts: Sequence[tuple[Any, str, int]]) -> list[CancelRequest]:
        """Reads from the jobs which attempts to cancel.

        Args:
            attempts: The broker of each job (the queue or a lane of it), its id and its fencing number.
        """

    @property
    def place(self) -> Hashable:
        """Identifies the endpoint that serves the queue, as last known; equal places fail together."""

    @property
    def is_connected(self) -> bool:
        """Whether the connection stands at this moment."""

    @property
    def waits_for_slot(self) -> bool:
        """Whether the last refusal concerned the queue's slot alone, and not its node."""

    @property
    def client_id(self) -> str:
        """Names this client in journals and lease tokens."""

    def attach(
        self,
        *,
        holding: Callable[[], bool],
        on_script: Callable[[str, float], None] | None = None,
        on_reconnect: Callable[[], None] | None = None,
    ) -> None:
        """Attaches a worker to the connection."""

    def serve(self, abilities: Abilities) -> None:
        """Sets the abilities of the worker that claims with this broker; they may change at any time."""

    async def has_targets(self) -> bool:
        """Returns whether jobs of the queue have targets."""

    async def take_watch(self, worker_id: str, life_ms: int) -> bool:
        """Makes a worker the one that watches the queue, unless another one does."""

    async def take_duty(self, group: str, worker_id: str, life_ms: int) -> int:
        """Makes a worker the one that maintains a group of queues, unless another one does.

        Returns:
            0 if it is this worker, otherwise the ms until another worker may be.
        """

    async def with_work(self, brokers: Sequence[ServedBroker]) -> list[int]:
        """Returns the indexes of those queues of this server that may have something to maintain."""

    def share_connection(self, other: ServedBroker) -> None:
        """Uses the connection and the clock of another queue of this server from now on."""

    async def remove_all_keys(self) -> None:
        """Removes every key that begins with the queue's; for tests."""

    async def counts_at_once(self) -> Mapping[str, int]:
        """As ``counts``, all at one moment if the protocol can."""

    async def now(self) -> int:
        """Reads the server's time in ms."""

    async def close(self) -> None:
        """Closes the connection."""

    async def add_each(
        self,
        jobs: Sequence[Encoded],
        *,
        timeout: float | None = None,
        replicated: bool = False,
        whole: bool = False,
    ) -> list[Added | OxcartError]:
        """As ``add``, with the error of a refused job in its place.

        Args:
            jobs: The jobs.
            timeout: Seconds after which it fails.
            replicated: Whether a replica must confirm the jobs.
            whole: Whether one call takes all jobs, so that a lost server leaves all of them or none. The
                server is held for about 20 µs per job.
        """

    async def counts_over_lanes(self) -> dict[str, int]:
        """Returns how many jobs of the queue and of its lanes are in each wire state."""

    async def workers(self) -> list[WorkerRecord]:
        """Returns the living workers of the queue."""

    async def unroutable(self) -> dict[str, int]:
        """Returns how many jobs wait whose target no living worker matches, by target."""

    async def unroutable_page(self, state: str, first: int, last: int, *, oldest: bool = False) -> list[Job]:
        """Reads a range of such jobs of a state, or of each of their lanes if lanes are queues."""

    async def ended(self, job_id: str) -> Ended:
        """Returns the stored end of a job."""

    async def expire(self) -> int:
        """Ends jobs whose lifetime has expired; returns how many."""


class BrokerSource(Protocol):
    """Opens the brokers of queues; `oxcart.Queue` takes one instead of a server's URL."""

    @property
    def capabilities(self) -> Capabilities:
        """What its brokers can express."""

    def open(
        self,
        queue: str,
        *,
        prefix: str,
        key_ring: KeyRing | None = None,
        reconnect: Reconnect | None = None,
    ) -> ServedBroker:
        """Opens a separate broker for one client of a queue."""
