"""The names of all keys of a Bridge namespace, in both layouts.

On a single server they are exactly the specification's: ``bridge:jobs:waiting``. On a cluster the namespace
is the hash tag, ``{bridge}:jobs:waiting``, because one claim touches the lists, the job and the counters. A
tag that the namespace already has stays.

Our own keys are under ``bridge:ox:``. All of them can be rebuilt from the specification's keys, except
the facts of running jobs; peers need not know of them.

Lua builds the same names from the prefix of the waiting key (``lua/parts/base.lua``).
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from urllib.parse import quote

from oxcart.broker.discovery import glob_escape
from oxcart.broker.slots import has_tag, slot_of
from oxcart.model.errors import ValidationError
from oxcart.model.names import check_job_name

DEFAULT_NAMESPACE = "bridge"

_NAMEABLE = "".join(map(chr, range(ord("!"), ord("~") + 1)))


def journal_key(waiting: str, slot: str) -> str:
    """Returns the key of a caller's slot, from the waiting list that a script was called with."""
    return f"{waiting.removesuffix('jobs:waiting')}ox:call:{slot}"


@dataclass(frozen=True, slots=True)
class BridgeKeys:
    """The keys of a namespace, as one of its job types uses them: one method per key.

    Attributes:
        queue: The job type.
        namespace: The prefix of all keys, ``bridge`` by default.
        tagged: Whether to make the namespace a hash tag (cluster layout).
    """

    queue: str
    namespace: str = DEFAULT_NAMESPACE
    tagged: bool = False

    def __post_init__(self) -> None:
        check_job_name(self.queue, "queue name")
        if not isinstance(self.namespace, str) or not self.namespace:
            raise ValidationError("namespace", "text of at least one character", self.namespace)

    @property
    def prefix(self) -> str:
        """The namespace, under the name that both protocols share."""
        return self.namespace

    @property
    def base(self) -> str:
        """The common beginning of all keys of the namespace, without the last colon."""
        return f"{{{self.namespace}}}" if self.tagged and not has_tag(self.namespace) else self.namespace

    def slot(self) -> int:
        """The cluster slot of all keys of the namespace."""
        return slot_of(self.waiting())

    def key(self, suffix: str) -> str:
        """Returns a key by its suffix; the methods below name the known ones."""
        return f"{self.base}:{suffix}"

    # -- the specification's

    def worker(self, server_id: str) -> str:
        """String: a worker's record, as JSON."""
        return self.key(f"workers:{server_id}")

    def heartbeat(self, server_id: str) -> str:
        """String: the time of a worker's last heartbeat; expires after 30 s."""
        return self.key(f"workers:heartbeat:{server_id}")

    def workers(self) -> str:
        """Set: the ids of registered workers."""
        return self.key("workers:active")

    def data(self, job_id: str) -> str:
        """String: a job's record, as JSON."""
        return self.key(f"jobs:data:{job_id}")

    def jobs_beginning(self, start: str) -> str:
        """Pattern: the records of jobs whose ids begin with a text."""
        return glob_escape(self.data("")) + glob_escape(start) + "*"

    def id_of(self, key: str) -> str:
        """Returns the id of a job by the key of its record."""
        return key[len(self.data("")) :]

    def status(self, job_id: str) -> str:
        """String: a job's status."""
        return self.key(f"jobs:status:{job_id}")

    def result(self, job_id: str) -> str:
        """String: a job's result, as JSON; expires after 24 h."""
        return self.key(f"jobs:result:{job_id}")

    def lock(self, job_id: str) -> str:
        """String: the id of the worker that has the lease on a job."""
        return self.key(f"jobs:lock:{job_id}")

    def progress(self, job_id: str) -> str:
        """String: a job's progress, as JSON."""
        return self.key(f"jobs:progress:{job_id}")

    def waiting(self) -> str:
        """List: ready jobs of all types, the next one at the head."""
        return self.key("jobs:waiting")

    def active(self) -> str:
        """Set: leased jobs."""
        return self.key("jobs:active")

    def delayed(self) -> str:
        """Sorted set: jobs that are not due yet."""
        return self.key("jobs:delayed")

    def cron(self) -> str:
        """Sorted set: schedules by the time of their next firing."""
        return self.key("jobs:cron")

    def dead_letters(self) -> str:
        """List: jobs that failed for good, the newest at the head."""
        return self.key("jobs:deadletter")

    def concurrent(self, job_type: str) -> str:
        """String: how many jobs of a type run."""
        return self.key(f"ratelimit:concurrent:{job_type}")

    def minute(self, job_type: str) -> str:
        """String: how many jobs of a type were claimed in this minute; expires after 60 s."""
        return self.key(f"ratelimit:minute:{job_type}")

    def paused(self) -> str:
        """Set: the paused types."""
        return self.key("queues:paused")

    def leader(self) -> str:
        """String: the id of the one scheduler that fires schedules; expires after 30 s."""
        return self.key("scheduler:lock")

    def processed(self) -> str:
        """String: how many jobs have completed."""
        return self.key("metrics:jobs:processed")

    def failed(self) -> str:
        """String: how many jobs have failed for good."""
        return self.key("metrics:jobs:failed")

    # -- ours alone

    def facts(self) -> str:
        """Hash: the facts that a claim needs of each live job that was read once."""
        return self.key("ox:facts")

    def listed(self) -> str:
        """Set: jobs of the waiting list that are also in a lane, or wait for others."""
        return self.key("ox:listed")

    def lanes(self) -> str:
        """Set: the targets of the type's waiting jobs, by the names of their lanes."""
        return self.key(f"ox:lanes:{self.queue}")

    def watcher(self) -> str:
        """String: the worker that watches for jobs of the type that no worker can take (short-lived)."""
        return self.key(f"ox:watcher:{self.queue}")

    def lane(self, name: str) -> str:
        """Sorted set: the type's waiting jobs of one target, by priority and turn."""
        return self.key(f"ox:lane:{len(self.queue.encode())}:{self.queue}:{name}")

    def turns(self) -> str:
        """String: the counter that keeps the order within a priority."""
        return self.key("ox:turns")

    def turned_back(self) -> str:
        """String: the counter of jobs that went to the front of their priority."""
        return self.key("ox:front")

    def scan(self) -> str:
        """Hash: how far the waiting list was scanned for jobs of other clients."""
        return self.key("ox:scan")

    def pending(self) -> str:
        """Sorted set: jobs that wait for others, by the time at which they began to wait."""
        return self.key("ox:pending")

    def followers(self, job_id: str) -> str:
        """Set: the dependents of a job; expires after a day, after which a slower search finds them."""
        return self.key(f"ox:next:{job_id}")

    def settling(self) -> str:
        """String: the guard that permits one check of all dependents at a time."""
        return self.key("ox:settling")

    def held(self) -> str:
        """Hash: the jobs that workers of ours run, and their types."""
        return self.key("ox:held")

    def held_of(self, job_type: str) -> str:
        """Set: the jobs of a type that workers of ours run."""
        return self.key(f"ox:active:{job_type}")

    def types(self) -> str:
        """Set: the job types that clients of ours have seen."""
        return self.key("ox:types")

    def job(self, job_id: str) -> str:
        """Hash: our workers' record of a job's runs."""
        return self.key(f"ox:job:{job_id}")

    def ended(self, state: str, job_type: str | None = None) -> str:
        """Sorted set: the jobs of a type (by default this one) that ended within a day, by the time."""
        return self.key(f"ox:ended:{state}:{self.queue if job_type is None else job_type}")

    def hold(self) -> str:
        """String: no job of the type is claimed while it exists."""
        return self.key(f"ox:hold:{self.queue}")

    def survey(self) -> str:
        """Hash: the progress of the search for jobs in no list, and when its last pass ended."""
        return self.key("ox:survey")

    def missing(self) -> str:
        """Sorted set: jobs that were found in no list, by the time of the first sight."""
        return self.key("ox:missing")

    def rescued(self, job_id: str) -> str:
        """String: how often a running job was found in no list; expires after a day."""
        return self.key(f"ox:rescued:{job_id}")

    def checking(self) -> str:
        """String: the guard that lets one check for lost workers run per interval."""
        return self.key("ox:checking")

    def marker(self) -> str:
        """Sorted set: the wake-up tokens that idle workers of ours block on."""
        return self.key(f"ox:marker:{self.queue}")

    def events(self) -> str:
        """Stream: the events of the type's jobs."""
        return self.key(f"ox:events:{self.queue}")

    def reading(self) -> str:
        """Hash: how many events of the type pipelines want to keep, and which pipelines read them."""
        return self.key(f"ox:reading:{self.queue}")

    def call(self, slot: str) -> str:
        """String: the answer to the last call of a caller's slot (short-lived)."""
        return journal_key(self.waiting(), slot)

    def cancellations(self, client_id: str) -> str:
        """Sorted set: the jobs that a worker is asked to cancel."""
        return self.key(f"ox:cancel:{client_id}")

    def inboxes(self, client_id: str) -> tuple[str, ...]:
        """The cancellation inboxes of a worker of this type."""
        return (self.cancellations(client_id),)

    def schedule(self, schedule_id: str) -> str:
        """Hash: our scheduler's record of a schedule: its policies and its last firing."""
        return self.key(f"ox:schedule:{schedule_id}")

    def fence(self) -> str:
        """String: the number of the leader's term; grows with every new leader."""
        return self.key("ox:term")

    def client_name(self, suffix: str = "") -> str:
        """The name of a worker's connection."""
        encoded = base64.b64encode(self.queue.encode()).decode()
        return quote(f"{self.base}:{encoded}{suffix}", safe=_NAMEABLE)
