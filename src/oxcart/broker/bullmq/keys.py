"""The names of all keys of a queue, in both layouts.

On a single server a queue's keys are ``bull:video:wait``, as Node writes them. On a cluster all keys of
a queue must share a slot, so the queue's name is its hash tag: ``bull:{video}:wait``. A tag that the
prefix or the name already has stays, because the user chose it. A lane has the tag of its base queue:
``bull:{video}@all;c=gpu:wait``.

Lua builds the same names from the prefix of the meta key (``lua/parts/base.lua``).
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from urllib.parse import quote

from oxcart.broker.discovery import glob_escape
from oxcart.broker.slots import has_tag, slot_of
from oxcart.model.errors import CrossSlotError
from oxcart.model.names import HIDDEN, check_queue_name
from oxcart.model.target import base_of

DEFAULT_PREFIX = "bull"

#: The characters that a server accepts in a connection's name: no space, only ASCII.
_NAMEABLE = "".join(map(chr, range(ord("!"), ord("~") + 1)))


def journal_key(meta: str, slot: str) -> str:
    """Returns the key of a caller's slot, from the meta key that a script was called with."""
    return f"{meta.removesuffix('meta')}ox:call:{slot}"


def split_own(key: str, base: str) -> tuple[str, str] | None:
    """Splits a key of a queue, of one of its lanes or of their gates into qualified name and end.

    Other queues may have names that begin alike: ``ada@example.com`` is no lane of ``ada``.

    Args:
        key: The key.
        base: The queue's qualified name.

    Returns:
        None for a key of another queue.
    """
    if not key.startswith(base):
        return None
    middle, colon, end = key[len(base) :].partition(":")
    lane = middle.removesuffix(HIDDEN)
    is_own = bool(colon) and (not lane or (lane[0] == "@" and base_of(f"q{lane}") == "q"))
    return (base + middle, end) if is_own else None


#: The states whose jobs are in a list; those of the others are in a sorted set.
LISTS = frozenset({"wait", "paused", "active"})


@dataclass(frozen=True, slots=True)
class Keys:
    """One queue's keys: one method per key.

    Attributes:
        prefix: The prefix of the queue's name, ``bull`` by default.
        queue: The queue's name as the user wrote it.
        tagged: Whether to make the queue's name a hash tag (cluster layout).
    """

    queue: str
    prefix: str = DEFAULT_PREFIX
    tagged: bool = False

    def __post_init__(self) -> None:
        check_queue_name(self.queue)

    @property
    def base(self) -> str:
        """The qualified name: the prefix of every key, without the last colon."""
        if self.tagged and not has_tag(self.prefix) and not has_tag(self.queue):
            of = base_of(self.queue)
            return f"{self.prefix}:{{{of}}}{self.queue[len(of) :]}"
        return f"{self.prefix}:{self.queue}"

    def slot(self) -> int:
        """The cluster slot of all keys of this queue.

        Raises:
            CrossSlotError: The layout has no hash tag, so its keys would be in different slots.
        """
        if not has_tag(self.base):
            raise CrossSlotError(
                f"queue {self.queue!r} with prefix {self.prefix!r} has no hash tag, so its keys would be in "
                "different slots of the cluster; use the tagged layout or a prefix like '{bull}'"
            )
        return slot_of(self.meta())

    def key(self, suffix: str) -> str:
        """Returns a key by its suffix; the methods below name the known ones."""
        return f"{self.base}:{suffix}"

    def meta(self) -> str:
        """Hash: the queue's settings (paused, concurrency, limits, length of the event stream)."""
        return self.key("meta")

    def id(self) -> str:
        """String: the counter of adds."""
        return self.key("id")

    def wait(self) -> str:
        """List: ready jobs, oldest at the tail."""
        return self.key("wait")

    def paused(self) -> str:
        """List: ready jobs while the queue is paused."""
        return self.key("paused")

    def active(self) -> str:
        """List: leased jobs, youngest at the head."""
        return self.key("active")

    def prioritized(self) -> str:
        """Sorted set: ready jobs with a priority."""
        return self.key("prioritized")

    def priority_counter(self) -> str:
        """String: the counter that keeps the order within a priority."""
        return self.key("pc")

    def delayed(self) -> str:
        """Sorted set: jobs that are not due yet."""
        return self.key("delayed")

    def waiting_children(self) -> str:
        """Sorted set: parents that wait for children."""
        return self.key("waiting-children")

    def completed(self) -> str:
        """Sorted set: completed jobs by the time they ended."""
        return self.key("completed")

    def failed(self) -> str:
        """Sorted set: failed jobs by the time they ended."""
        return self.key("failed")

    def marker(self) -> str:
        """Sorted set: the wake-up tokens that idle workers block on."""
        return self.key("marker")

    def stalled(self) -> str:
        """Set: ids that were active at the last stalled check."""
        return self.key("stalled")

    def stalled_check(self) -> str:
        """String: the guard that lets one stalled check run per interval."""
        return self.key("stalled-check")

    def limiter(self) -> str:
        """String: the rate limit's counter in the current window."""
        return self.key("limiter")

    def schedulers(self) -> str:
        """Sorted set: schedules by the time of their next run."""
        return self.key("repeat")

    def scheduler(self, scheduler_id: str) -> str:
        """Hash: a schedule."""
        return self.key(f"repeat:{scheduler_id}")

    def events(self) -> str:
        """Stream: the events of the queue's jobs."""
        return self.key("events")

    def metrics(self, state: str) -> str:
        """Hash: how many jobs ended in this state; with ``:data`` behind it the list of minutes."""
        return self.key(f"metrics:{state}")

    def job(self, job_id: str) -> str:
        """Hash: a job."""
        return self.key(job_id)

    def jobs_beginning(self, start: str) -> str:
        """Pattern: the jobs of the queue and its lanes whose ids begin with a text."""
        return f"{glob_escape(self.base)}*:{glob_escape(start)}*"

    def id_of(self, key: str) -> str | None:
        """Returns the id of a job of the queue or a lane by its key; None for another queue's."""
        found = split_own(key, self.base)
        return found[1] if found else None

    def lock(self, job_id: str) -> str:
        """String: the token of the lease on a job."""
        return self.key(f"{job_id}:lock")

    def logs(self, job_id: str) -> str:
        """List: a job's log lines."""
        return self.key(f"{job_id}:logs")

    def dependencies(self, job_id: str) -> str:
        """Set: children that a job still waits for."""
        return self.key(f"{job_id}:dependencies")

    def processed(self, job_id: str) -> str:
        """Hash: children that completed, with their results."""
        return self.key(f"{job_id}:processed")

    def ignored(self, job_id: str) -> str:
        """Hash: children that failed without failing the job, with the reasons."""
        return self.key(f"{job_id}:failed")

    def unsuccessful(self, job_id: str) -> str:
        """Sorted set: children whose failure fails the job."""
        return self.key(f"{job_id}:unsuccessful")

    def deduplication(self, name: str) -> str:
        """String: the id of the job that owns a deduplication window."""
        return self.key(f"de:{name}")

    def kept(self, name: str) -> str:
        """Hash: the last add to a window whose owner runs."""
        return self.key(f"dn:{name}")

    def idempotency(self, name: str, key: str) -> str:
        """String: the id of the job that owns an idempotency key (ours alone)."""
        return self.key(f"ox:idem:{len(name.encode())}:{name}:{key}")

    def expiring(self) -> str:
        """Sorted set: jobs with a lifetime, by the time at which it expires (ours alone)."""
        return self.key("ox:expiring")

    def call(self, slot: str) -> str:
        """String: the answer to the last call of a caller's slot (ours alone, short-lived)."""
        return journal_key(self.meta(), slot)

    def held(self) -> str:
        """Sorted set: jobs that run under a limit per type, key or group, as bucket LF id (ours alone)."""
        return self.key("ox:held")

    def parked(self) -> str:
        """Sorted set: jobs that such a limit holds back, or that wait for their group's turn, as bucket LF
        order LF id (ours alone).
        """
        return self.key("ox:parked")

    def opening(self) -> str:
        """Sorted set: buckets that hold jobs back, by the time of their next check (ours alone)."""
        return self.key("ox:opening")

    def turns(self) -> str:
        """Sorted set: groups that may have a next job, by whose turn it is (ours alone)."""
        return self.key("ox:turns")

    def groups(self) -> str:
        """Hash: the settings of single groups (ours alone)."""
        return self.key("ox:groups")

    def swept(self) -> str:
        """String: how far the search for lost places of groups has come (ours alone, short-lived)."""
        return self.key("ox:swept")

    def starts(self, bucket: str) -> str:
        """String: how many jobs of a bucket started in the present minute (ours alone, short-lived)."""
        return self.key(f"ox:rate:{bucket}")

    def callbacks(self) -> str:
        """Sorted set: jobs whose webhook is not enqueued yet, by the time of their add (ours alone)."""
        return self.key("ox:callbacks")

    def cancellations(self, client_id: str) -> str:
        """Sorted set: the jobs that a worker is asked to cancel (ours alone; a day at most)."""
        return self.key(f"ox:cancel:{client_id}")

    def inboxes(self, client_id: str) -> tuple[str, ...]:
        """The cancellation inboxes of a worker of this queue; for a lane also that of its base queue."""
        own, base = self.cancellations(client_id), base_of(self.queue)
        if base == self.queue:
            return (own,)
        return own, Keys(base, self.prefix, self.tagged).cancellations(client_id)

    def gates(self) -> str:
        """Set: the hidden queues whose gates hold jobs of this queue, or wait for such (ours alone)."""
        return self.key("ox:gates")

    def lanes(self) -> str:
        """Sorted set: the queue's lanes, by when they were last seen with a job (ours alone)."""
        return self.key("ox:lanes")

    def ready_lanes(self) -> str:
        """Set: lanes that may have a job to claim (ours alone)."""
        return self.key("ox:lanes:ready")

    def busy_lanes(self) -> str:
        """Set: lanes with active jobs (ours alone)."""
        return self.key("ox:lanes:busy")

    def lanes_version(self) -> str:
        """String: grows with every new or removed lane (ours alone)."""
        return self.key("ox:lanes:version")

    def lanes_tended(self) -> str:
        """String: a worker maintained the lanes within the last second (ours alone)."""
        return self.key("ox:lanes:tended")

    def lane_ids(self) -> str:
        """Hash: custom ids of jobs in lanes, and their lanes (ours alone)."""
        return self.key("ox:ids")

    def workers(self) -> str:
        """Sorted set: the queue's workers, by their last heartbeat (ours alone)."""
        return self.key("ox:workers")

    def worker(self, worker_id: str) -> str:
        """String: a worker's record, for 30 s after its heartbeat (ours alone)."""
        return self.key(f"ox:worker:{worker_id}")

    def watcher(self) -> str:
        """String: the worker that watches for jobs that no worker can take (ours alone, short-lived)."""
        return self.key("ox:watcher")

    def listeners(self) -> str:
        """Sorted set: workers that are woken for new lanes, by when their heartbeat expires (ours alone)."""
        return self.key("ox:listeners")

    def crowded(self) -> str:
        """Sorted set: workers that are woken for every add to a lane, by the same (ours alone)."""
        return self.key("ox:crowded")

    def wake(self, worker_id: str) -> str:
        """Sorted set: the lanes that a worker is woken for (ours alone)."""
        return self.key(f"ox:wake:{worker_id}")

    def layout(self) -> str:
        """Hash: the versions of the layout of a partitioned queue, in each partition (ours alone)."""
        return self.key("ox:partitions")

    def dividing(self) -> str:
        """String: the mark of a client that divides limits among partitions (ours alone, short-lived)."""
        return self.key("ox:dividing")

    def totals(self) -> str:
        """Hash: the limits of a partitioned queue before they are divided, in partition 0 (ours alone)."""
        return self.key("ox:totals")

    def of_work(self) -> tuple[str, ...]:
        """The keys of which none exists while the queue has nothing to run, to promote or to repair."""
        lists = (self.wait(), self.paused(), self.active(), self.prioritized(), self.delayed())
        held_back = (self.waiting_children(), self.parked(), self.held(), self.opening(), self.turns())
        return *lists, *held_back, self.expiring(), self.gates(), self.lanes(), self.schedulers()

    def client_name(self, suffix: str = "") -> str:
        """The connection name by which Node's ``getWorkers`` finds a worker of this queue."""
        encoded = base64.b64encode(self._named().encode()).decode()
        return quote(f"{self.prefix}:{encoded}{suffix}", safe=_NAMEABLE)

    def consumer_names(self) -> tuple[str, str]:
        """The connection names of this queue's workers: Node's and ours, and PyPI's, which is plain."""
        plain = quote(f"{self.prefix}:{self._named()}", safe=_NAMEABLE)
        return self.client_name(), plain

    def _named(self) -> str:
        # A Node peer on the same keys has the tag as part of its queue's name.
        return self.base[len(self.prefix) + 1 :]
