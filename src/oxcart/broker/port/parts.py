"""The optional parts of a broker, one protocol each; a part is None if the broker's protocol lacks the
feature.

``capabilities.part(broker.flows, "flows")`` returns a part, or raises ``NotSupported`` with the alternative.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from oxcart.broker.keyring import Bond
from oxcart.broker.port.codes import Code
from oxcart.broker.port.flows import Flows, Graphs
from oxcart.broker.port.groups import Groups
from oxcart.broker.port.lanes import Lanes
from oxcart.broker.port.results import (
    Cancelled,
    DeadDone,
    DeadVerb,
    DeadWork,
    LimitRules,
    NamespaceStats,
    Rescued,
    Series,
)
from oxcart.broker.port.sampling import Sampling
from oxcart.broker.port.schedules import Schedules
from oxcart.broker.port.values import Encoded, Lease
from oxcart.broker.progress import OnProgress, silent
from oxcart.model.filter import JobFilter
from oxcart.model.partitions import Layout

if TYPE_CHECKING:
    from oxcart.broker.port.broker import ServedBroker
    from oxcart.broker.sealing import Sealer
    from oxcart.broker.workers import WorkerRegistry


class Bulk(Protocol):
    """Operations on many jobs of a queue and its lanes, in bounded steps that leave the server free between.

    An interrupted operation keeps its partial result; calling it again continues from there. Jobs that move
    between states meanwhile may be missed, as they may have moved just before the call.
    """

    async def clean(
        self,
        states: Sequence[str],
        before_ms: int,
        *,
        limit: int | None = None,
        progress: OnProgress = silent,
    ) -> int:
        """Removes the jobs of wire states that were last touched before a time; returns how many.

        Args:
            states: The wire's names of the states.
            before_ms: A finished job counts by its end, another by its last start, else by its creation.
            limit: How many to remove at most, oldest first.
            progress: Called after every step.
        """

    async def clear(self, *, delayed: bool = False, progress: OnProgress = silent) -> int:
        """Removes every waiting job except the next runs of schedules; returns how many.

        Args:
            delayed: Whether to remove delayed jobs as well.
            progress: Called after every step.
        """

    async def obliterate(self, *, force: bool = False, progress: OnProgress = silent) -> int:
        """Removes the queue with everything that belongs to it; returns how many jobs it had.

        Args:
            force: Whether to remove leased jobs as well; their results will be refused.
            progress: Called after every step.

        Raises:
            QueueBusy: Jobs of it are leased, and ``force`` is not set. Nothing has changed.
        """

    async def retry_all(
        self,
        state: Literal["failed", "completed"],
        *,
        since_ms: int = 0,
        until_ms: int | None = None,
        limit: int | None = None,
        reset: bool = False,
        progress: OnProgress = silent,
    ) -> int:
        """Lets finished jobs run again, oldest end first; returns how many.

        Args:
            state: Which of them.
            since_ms: Only jobs that ended at this time or later.
            until_ms: Only jobs that ended at this time or earlier; by default now, so that a job which
                fails again meanwhile does not run a third time.
            limit: How many at most.
            reset: Whether to reset their attempts.
            progress: Called after every step.
        """

    async def promote_all(
        self, *, until_ms: int | None = None, limit: int | None = None, progress: OnProgress = silent
    ) -> int:
        """Promotes delayed jobs now, the earliest due first; returns how many.

        Args:
            until_ms: Only jobs that are due at this time or earlier.
            limit: How many at most.
            progress: Called after every step.
        """

    async def counts_per_priority(self, priorities: Iterable[int] | None = None) -> dict[int, int]:
        """Returns how many jobs wait with each given priority; by default with each that a job has."""

    async def trim_events(self, keep: int, *, progress: OnProgress = silent) -> int:
        """Drops the oldest events, down to about ``keep``; returns how many."""

    async def publish(self, name: str, fields: Mapping[str, str | bytes], keep: int | None = None) -> str:
        """Adds an application event to the queue's stream; returns its id."""


class Rescue(Protocol):
    """The search for jobs that are in no list of their queue, so that no worker would ever run them.

    It scans all keys in bounded steps. A script decides about each suspect in the same step in which it moves
    it, so a job that moved meanwhile is left alone.
    """

    async def run(self, *, dry_run: bool = False, progress: OnProgress = silent) -> Rescued:
        """Puts lost jobs back; with ``dry_run`` it only returns which."""

    async def remove_orphans(self, *, dry_run: bool = False, progress: OnProgress = silent) -> list[str]:
        """Removes lost jobs that no worker has leased, instead; returns their ids."""


class Cancelling(Protocol):
    """Cancels jobs of a queue and its lanes."""

    async def cancel(self, ids: Sequence[str], reason: str, *, force: bool) -> list[Code]:
        """Cancels jobs; returns for each ``CANCELLED``, ``ASKED`` or the code of an error."""

    async def cancel_all(
        self,
        chosen: JobFilter,
        states: Iterable[str],
        reason: str,
        *,
        force: bool = False,
        dry_run: bool = False,
        limit: int | None = None,
        progress: OnProgress = silent,
    ) -> Cancelled:
        """Cancels the jobs of some wire states that a filter selects; ``dry_run`` only returns which."""


class DeadLetters(Protocol):
    """Finds, replays and removes the dead letters of a queue and its lanes."""

    async def run(self, work: DeadWork) -> DeadDone:
        """Goes through the dead letters, oldest first, and processes those that the filter selects."""

    async def apply(
        self, verb: DeadVerb, ids: Sequence[str], *, reset: bool = False, permanent: bool = False
    ) -> list[str]:
        """Processes those of these jobs that are dead letters; returns their ids."""


class Deduplication(Protocol):
    """The deduplication windows of a queue."""

    async def owner(self, name: str) -> str | None:
        """Returns the id of the job that owns a window."""

    async def release(self, name: str, owner: str = "") -> bool:
        """Closes a window, if this job owns it; returns whether it was open."""


class Limits(Protocol):
    """The limits of a queue, and those per type and key. Every write may be repeated without harm."""

    async def set_concurrency(self, most: int) -> int:
        """Sets how many jobs may be active; returns how many fields are new."""

    async def concurrency(self) -> int | None:
        """Returns how many jobs may be active, or None."""

    async def remove_concurrency(self) -> int:
        """Removes the limit of active jobs; returns how many fields there were."""

    async def set_rate(self, most: int, duration_ms: int) -> int:
        """Sets how many jobs may start in so many ms; returns how many fields are new."""

    async def rate(self) -> tuple[int, int] | None:
        """Returns how many jobs may start in how many ms, or None."""

    async def remove_rate(self) -> int:
        """Removes the rate limit; returns how many fields there were."""

    async def hold(self, duration_ms: int) -> None:
        """Blocks all starts for so many ms."""

    async def release(self) -> int:
        """Ends a hold, and restarts the present window of a rate; returns how many keys there were."""

    async def ttl_ms(self) -> int:
        """Returns the ms left of the present window or hold; below zero if there is none."""

    async def wait_ms(self, most: int | None = None) -> int:
        """Returns for how many ms the limit blocks the next start; 0 if a job may start.

        Args:
            most: The limit of a worker, for a queue without its own.
        """

    async def set_type(self, name: str, concurrent: int, per_minute: int) -> None:
        """Limits a type; two zeros remove the limit."""

    async def set_keys(self, concurrent: int, per_minute: int) -> None:
        """Limits every key; two zeros remove the limit."""

    async def rules(self) -> LimitRules:
        """Returns the limits per type and key."""

    async def usage_of_type(self, name: str) -> tuple[int, int, int]:
        """Returns how many jobs of a type run, are held back, and started in the present minute."""

    async def usage_of_keys(self, key: str | None) -> tuple[int, int, int]:
        """Returns the same of one key, or of all keys together, whose starts are not counted."""


class Gates(Protocol):
    """Releases dependents: jobs that wait behind the gates of jobs that have finished."""

    async def tick(self) -> int:
        """Settles the gates of finished jobs; returns how many jobs it released."""

    async def repair(self) -> int:
        """Restores the gates of waiting jobs that lost them; returns how many dependencies it repaired."""

    def open_listener(self, gates: Sequence[Gates]) -> GateListener:
        """Opens a listener for the gates of some queues of this site."""


class GateListener(Protocol):
    """Settles gates as soon as they open, over a connection of its own."""

    async def settle_for(self, seconds: float) -> None:
        """Settles gates for so many seconds: all of them first, then each that opens meanwhile."""

    async def close(self) -> None:
        """Closes the connection."""


class WebhookIndex(Protocol):
    """The jobs with a ``callback_url`` whose webhook is not enqueued yet."""

    async def enter(self, job_ids: Sequence[str], timeout: float | None = None) -> None:
        """Enters jobs before they are added; may be repeated."""

    def scan(self) -> AsyncIterator[list[tuple[str, float]]]:
        """Yields all entries in steps, each with the time in ms at which it was entered."""

    async def drop(self, job_id: str) -> None:
        """Drops a job whose webhook is enqueued, or that is gone."""


class Partitions(Protocol):
    """The partitions of a queue, each of which is a queue of its own.

    Attributes:
        placed: The partitions of jobs whose id does not lead there, until they are added.
    """

    placed: dict[str, int]

    @property
    def layout(self) -> Layout:
        """The newest version of the layout that this client knows."""

    async def ready(self) -> None:
        """Learns the layout before the first use, and again when the copy is old."""

    async def exists(self) -> bool:
        """Returns whether a layout is stored; makes none."""

    async def refresh(self) -> Layout:
        """Reads the newest version of the layout."""

    def broker(self, number: int) -> ServedBroker:
        """Returns the broker of a partition."""

    def began(self, number: int, jobs: int) -> None:
        """Counts jobs whose add to a partition is under way, or with a negative number no longer."""

    def number_of(self, job: Encoded) -> int:
        """Returns the number of the partition that an encoded job goes to."""

    def brokers(self) -> Sequence[ServedBroker]:
        """Returns the brokers of all partitions that may have jobs."""

    async def find(self, job_ids: Iterable[str]) -> Mapping[str, ServedBroker]:
        """Returns the partitions that have some jobs; for a job that none has, where it would be."""

    async def resize(self, size: int) -> Layout:
        """Lets new jobs go to another number of partitions; returns the new layout."""

    async def retire(self, *, least_age_ms: int = 0) -> Layout:
        """Gives up the partitions that get no new jobs and are empty; returns the layout.

        Args:
            least_age_ms: Change nothing if the layout changed within so many ms.
        """

    async def reclaim(self) -> Layout:
        """Takes partitions that were given up back, if jobs were added to them since; returns the layout."""

    async def settle(self) -> bool:
        """Moves schedules and shares of limits after a resize; returns whether all are in their place."""


class Logs(Protocol):
    """The logs of jobs."""

    async def append(self, job_id: str, lines: Sequence[str], keep: int | None) -> int:
        """Appends to a job's log and keeps the newest lines, None for all; returns its length."""

    async def read(self, job_id: str, first: int = 0, last: int = -1) -> list[str]:
        """Reads a job's log."""

    async def clear(self, job_id: str, keep: int = 0) -> None:
        """Drops a job's log except the newest lines."""


class Updates(Protocol):
    """Changes to jobs that exist."""

    async def change_priority(self, job_id: str, priority: int, *, lifo: bool = False) -> None:
        """Changes a job's priority; ``lifo`` puts it in front of its equals."""

    async def update(self, job_id: str, metadata: Mapping[str, Any], priority: int | None) -> None:
        """Changes metadata and the priority of a job that has not ended.

        Args:
            job_id: The job.
            metadata: ``tags``, ``correlation_id`` and ``callback_url``, as far as they change; None removes.
            priority: The new priority; None keeps it.
        """


class Suspects(Protocol):
    """Notes of how jobs run that were lost before: only those that ran alone may have ended their worker.

    A claim with ``Ask.isolates`` notes that its suspects wait. Such a job that is lost without another note
    was not started, and its loss counts nowhere.
    """

    async def start(self, leases: Sequence[Lease], *, alone: bool) -> list[str]:
        """Notes that jobs start, alone in their worker or not; returns the ids whose lease is gone."""


class Metrics(Protocol):
    """Counts of ended jobs by the minute."""

    async def series(self, state: Literal["completed", "failed"], first: int = 0, last: int = -1) -> Series:
        """Reads how many jobs ended per minute, if workers count them.

        Args:
            state: Which of them.
            first: The first point, the newest being 0.
            last: The last point, inclusive; -1 for the oldest.
        """


class StoredIn(StrEnum):
    """Where a value is stored; the value is the letter that scripts read."""

    #: A field of a hash.
    HASH = "h"
    STRING = "s"
    #: A job's record on Bridge.
    RECORD = "r"


class StoredValue(msgspec.Struct):
    """A stored value that a key ring may seal, and where it is.

    Attributes:
        raw: The value, sealed or plain.
        bond: The context that it is bound to.
        key: The key that holds it; in a record the job's id.
        stored: The whole content of the key or field.
        field: The field of a hash.
        place: Where it is stored.
        put: Puts a new value into the content; None if the value is all of it.
    """

    raw: bytes
    bond: Bond
    key: str
    stored: bytes
    field: bytes = b""
    place: StoredIn = StoredIn.HASH
    put: Callable[[bytes], bytes] | None = None


class SealedValues(Protocol):
    """The stored values of a queue and its lanes that a key ring may seal."""

    def values(self, sealer: Sealer, progress: OnProgress) -> AsyncIterator[StoredValue]:
        """Yields all values, in steps over the server's keys."""

    async def replace(self, batch: Sequence[tuple[StoredValue, bytes]]) -> int:
        """Replaces contents that are unchanged since they were read; returns how many were."""


class Namespace(Protocol):
    """A namespace that the job types of several queues share."""

    @property
    def name(self) -> str:
        """The namespace's name."""

    async def stats(self, *, every_type: bool = False) -> NamespaceStats:
        """Reads the monitoring list.

        Args:
            every_type: Whether to scan all jobs for the types whose running jobs are counted, instead
                of using the types that our clients have seen.
        """

    async def types(self) -> list[str]:
        """Returns all job types, sorted."""

    async def unnoted_ends(self) -> dict[str, list[str]]:
        """Returns jobs that other clients completed and no worker recorded, by type, oldest first."""

    async def entries_without_job(self) -> int:
        """Returns how many entries of the waiting list have no job."""

    async def rescue(
        self, types: Iterable[str] = (), *, dry_run: bool = False, progress: OnProgress = silent
    ) -> dict[str, Rescued]:
        """Puts back lost jobs, of all types by default; returns the findings by type."""


class Parts(Protocol):
    """The optional parts of a broker."""

    @property
    def bulk(self) -> Bulk | None:
        """Operations on many jobs."""
        return None

    @property
    def cancelling(self) -> Cancelling | None:
        """Cancels jobs."""
        return None

    @property
    def dead_letters(self) -> DeadLetters | None:
        """The dead letters."""
        return None

    @property
    def deduplication(self) -> Deduplication | None:
        """The deduplication windows."""
        return None

    @property
    def flows(self) -> Flows | None:
        """Trees of jobs."""
        return None

    @property
    def gates(self) -> Gates | None:
        """Releases dependents."""
        return None

    @property
    def graphs(self) -> Graphs | None:
        """Jobs that wait for others."""
        return None

    @property
    def groups(self) -> Groups | None:
        """Groups of jobs that take turns."""
        return None

    @property
    def lanes(self) -> Lanes | None:
        """The queues of jobs with a target."""
        return None

    @property
    def limits(self) -> Limits | None:
        """The limits."""
        return None

    @property
    def logs(self) -> Logs | None:
        """The logs of jobs."""
        return None

    @property
    def metrics(self) -> Metrics | None:
        """Counts of ended jobs by the minute."""
        return None

    @property
    def namespace(self) -> Namespace | None:
        """The namespace that the queue shares with others."""
        return None

    @property
    def partitions(self) -> Partitions | None:
        """The partitions; None for a queue without."""
        return None

    @property
    def registry(self) -> WorkerRegistry | None:
        """The registry of workers."""
        return None

    @property
    def rescue(self) -> Rescue | None:
        """The search for lost jobs."""
        return None

    @property
    def sampling(self) -> Sampling | None:
        """Samples the queue together with others on its server."""
        return None

    @property
    def sealed_values(self) -> SealedValues | None:
        """The stored values that a key ring may seal."""
        return None

    @property
    def schedules(self) -> Schedules | None:
        """The schedules."""
        return None

    @property
    def suspects(self) -> Suspects | None:
        """Notes of how jobs run that were lost before."""
        return None

    @property
    def updates(self) -> Updates | None:
        """Changes to jobs that exist."""
        return None

    @property
    def webhooks(self) -> WebhookIndex | None:
        """The index of jobs that have a webhook."""
        return None
