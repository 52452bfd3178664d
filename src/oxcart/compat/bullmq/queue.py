"""A queue as in PyPI's package: adds, reads and changes jobs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from oxcart.broker.bullmq import bulk, codec
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.codec import Encoded
from oxcart.broker.bullmq.keys import Keys
from oxcart.broker.port import Added
from oxcart.compat.bullmq.event_emitter import EventEmitter
from oxcart.compat.bullmq.job import Job, job_of, removed
from oxcart.compat.bullmq.job_scheduler import JobScheduler
from oxcart.compat.bullmq.options import policy_of, read_options
from oxcart.compat.bullmq.queue_keys import NAMES
from oxcart.compat.bullmq.record import dumps, name_of
from oxcart.compat.bullmq.redis_connection import check_backend, client_of, server_of
from oxcart.compat.bullmq.refusals import translate_refusal
from oxcart.compat.bullmq.retries import OnlyUnrecoverable, Strategies
from oxcart.compat.bullmq.store import store_of
from oxcart.engine.verdict import Verdict
from oxcart.model.errors import PayloadError, QueueBusy, ScriptError, ValidationError
from oxcart.model.flow import Tree
from oxcart.queue import Queue as OxcartQueue

#: The names of all states.
TYPES = ("active", "completed", "delayed", "failed", "prioritized", "waiting", "waiting-children")
#: Their names on the wire. Jobs of a paused queue count as waiting.
_PLACES = {"waiting": ("wait", "paused"), "wait": ("wait", "paused"), "paused": ()}
#: Pages that are read to fill one in which hashes are missing.
PAGES = 5
#: The index after the last job of a list.
_END = 2**31


class QueueBase(EventEmitter):
    """The common part of queues and workers: a name, a place, and the queue on our engine."""

    def __init__(self, name: str, opts: Mapping[str, Any]) -> None:
        super().__init__()
        check_backend(opts)
        self.name = name
        self.prefix: str = opts.get("prefix") or "bull"
        self._connection = opts.get("connection")
        #: The queue on our engine, for features that this package lacks.
        self.inner = OxcartQueue(name, server=server_of(self._connection), prefix=self.prefix)
        self._keys = keys = Keys(name, self.prefix, self.inner._core.server.is_cluster)
        self.qualifiedName = keys.base
        self.keys = {suffix: keys.key(suffix) for suffix in NAMES}
        self._client: Any = None
        self._by_hand: BullMQBroker | None = None
        self._token = ""

    @property
    def client(self) -> Any:
        """A client of redis-py on the same server, for programs that read keys themselves."""
        if self._client is None:
            self._client = client_of(self._connection, self.inner._core.server)
        return self._client

    def toKey(self, type: str) -> str:
        """Returns a key of the queue by its last part."""
        return f"{self.qualifiedName}:{type}"

    @property
    def store(self) -> BullMQBroker:
        """The queue's storage."""
        return store_of(self)

    def by_hand(self, token: str) -> BullMQBroker:
        """Returns the queue's storage for a claim under the caller's own lock."""
        if self._by_hand is None:
            self._by_hand = BullMQBroker(
                self.inner._core.server, self.name, prefix=self.prefix, new_token=lambda: self._token
            )
        self._token = token
        return self._by_hand

    async def _close(self) -> None:
        if self._by_hand is not None:
            await self._by_hand.close()
            self._by_hand = None
        if self._client is not None and self._client is not self._connection:
            await self._client.aclose()
            self._client = None
        await self.inner.close()


class Queue(QueueBase):
    """A queue.

    Args:
        name: Its name.
        opts: ``connection``, ``prefix``, ``defaultJobOptions``.
    """

    def __init__(self, name: str, opts: Mapping[str, Any] | None = None) -> None:
        opts = opts or {}
        super().__init__(name, opts)
        self.opts = opts
        self.jobsOpts: dict[str, Any] = dict(opts.get("defaultJobOptions") or {})
        self._job_scheduler: JobScheduler | None = None
        strategies = Strategies(opts.get("settings"), lambda: None)
        self.judge = Verdict(rand=random.random, classifier=OnlyUnrecoverable(), strategies=strategies)

    # -- adding

    async def add(self, name: str, data: Any, opts: Mapping[str, Any] | None = None) -> Job:
        """Adds a job.

        Raises:
            ValidationError: An argument is invalid; nothing was written.
            TypeError: Its parent does not exist.
        """
        job, encoded = self._made(name, data, {**self.jobsOpts, **(opts or {})})
        if encoded is None:
            await self._add_children([job])
        else:
            core = self.inner._core
            (added,) = await core.add([encoded], timeout=core.add_timeout, replicated=core.is_replicated())
            _note_added(job, added)
        return job

    async def addBulk(self, jobs: Iterable[Mapping[str, Any]]) -> list[Job]:
        """Adds many jobs, each a dict of ``name``, ``data`` and ``opts``, in few round trips."""
        made = [
            self._made(one["name"], one.get("data"), {**self.jobsOpts, **(one.get("opts") or {})})
            for one in jobs
        ]
        alone = [(job, encoded) for job, encoded in made if encoded is not None]
        added = await self.store.add([encoded for _, encoded in alone], timeout=self.inner._core.add_timeout)
        for (job, _), one in zip(alone, added, strict=True):
            _note_added(job, one)
        await self._add_children([job for job, encoded in made if encoded is None])
        return [job for job, _ in made]

    def _made(self, name: str, data: Any, opts: Mapping[str, Any]) -> tuple[Job, Encoded | None]:
        job = Job(self, name, data, opts)
        options = read_options(opts)
        if job.parent is not None:
            return job, None
        name = name_of(name)
        try:
            return job, codec.encode_job(name, data, options, "", counted=True)
        except PayloadError:
            return job, codec.encode_job(name, dumps(data), options, "", counted=True)

    async def _add_children(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            given = dict(job.opts)
            body, options = dumps(job.data), read_options(given)
            tree = Tree(self.name, self.prefix, name_of(job.name), body, options, policy_of(given))
            job.id = await add_below(self.inner, job, tree)

    # -- steering

    async def pause(self) -> None:
        """Blocks claims; running jobs continue."""
        await self.inner.pause()

    async def resume(self) -> None:
        """Allows claims again."""
        await self.inner.resume()

    async def isPaused(self) -> bool:
        """Returns whether it is paused."""
        return await self.inner.is_paused()

    async def getRateLimitTtl(self) -> int:
        """Returns the ms left of a rate limit; below zero if there is none."""
        return await self.store.limits.ttl_ms()

    async def rateLimit(self, expire_time_ms: int) -> None:
        """Blocks all starts for so many ms."""
        await self.inner.limits.hold(f"{expire_time_ms}ms")

    async def removeRateLimitKey(self) -> int:
        """Ends a rate limit; returns how many keys were removed."""
        return await self.store.limits.release()

    async def setGlobalConcurrency(self, concurrency: int) -> int:
        """Sets how many jobs may run at once over all workers; returns 1 if that is new."""
        return await self.store.limits.set_concurrency(_count(concurrency, "concurrency"))

    async def getGlobalConcurrency(self) -> int | None:
        """Returns how many jobs may run at once, or None."""
        return await self.inner.limits.concurrency()

    async def removeGlobalConcurrency(self) -> int:
        """Removes the limit of jobs at once; returns how many fields were removed."""
        return await self.store.limits.remove_concurrency()

    async def setGlobalRateLimit(self, max_jobs: int, duration_ms: int) -> int:
        """Sets how many jobs may start in so many ms; returns how many fields are new."""
        limits = self.store.limits
        return await limits.set_rate(_count(max_jobs, "max_jobs"), _count(duration_ms, "duration_ms"))

    async def getGlobalRateLimit(self) -> dict[str, int] | None:
        """Returns ``max`` and ``duration``, or None."""
        rate = await self.inner.limits.rate()
        return None if rate is None else {"max": rate.most, "duration": rate.per_ms}

    async def removeGlobalRateLimit(self) -> int:
        """Removes the rate limit; returns how many fields were removed."""
        return await self.store.limits.remove_rate()

    async def obliterate(self, force: bool = False) -> None:
        """Removes the queue and everything in it.

        Raises:
            Exception: Jobs are leased, and ``force`` is not set.
        """
        try:
            await self.inner.jobs.obliterate(force=force)
        except QueueBusy as error:
            raise Exception("Cannot obliterate queue with active jobs") from error

    async def drain(self, delayed: bool = False) -> None:
        """Removes every waiting job, and optionally delayed ones."""
        await self.inner.jobs.clear(delayed=delayed)

    async def clean(self, grace: int, limit: int, type: str) -> list[str]:
        """Removes jobs of a state that are older than so many ms; returns their ids.

        Args:
            grace: Their minimum age in ms.
            limit: How many at most; 0 for all.
            type: ``completed``, ``failed``, ``wait``, ``prioritized``, ``delayed``, ``active`` or ``paused``.
        """
        broker, ids = self.store, list[str]()
        before = await broker.now() - grace
        for place in ("paused",) if type == "paused" else _PLACES.get(type, (type,)):
            rest = limit - len(ids) if limit else None
            if rest is None or rest > 0:
                await bulk.clean(broker, place, before, limit=rest, ids=ids)
        return ids

    async def retryJobs(self, opts: Mapping[str, Any] | None = None) -> None:
        """Lets failed (or, by ``state``, completed) jobs run again that ended before ``timestamp``."""
        opts = opts or {}
        await self.inner.jobs.retry_all(opts.get("state") or "failed", until=opts.get("timestamp") or None)

    async def promoteJobs(self, opts: Mapping[str, Any] | None = None) -> None:
        """Promotes all delayed jobs now."""
        await self.inner.jobs.promote_all()

    async def trimEvents(self, maxLength: int) -> int:
        """Drops the oldest events, down to about so many; returns how many."""
        return await self.inner.events.trim(maxLength)

    async def removeDeprecatedPriorityKey(self) -> int:
        """Removes a key of versions before 4; returns how many keys were removed."""
        return int(await self.store.remove_key("priority"))

    async def removeDeduplicationKey(self, id: str) -> int:
        """Closes a deduplication window, so that its next add makes a job; as in Node."""
        return int(await self.inner.deduplication.release(id))

    async def remove(self, job_id: str, opts: Mapping[str, Any] | None = None) -> int:
        """Removes a job, with its children unless ``removeChildren`` is False; returns 0 if it is leased."""
        return await removed(self.store, job_id, (opts or {}).get("removeChildren", True))

    async def removeOrphanedJobs(self) -> int:
        """Removes jobs that are in no state; returns how many. As in Node."""
        return len(await self.inner.jobs.remove_orphans())

    # -- reading

    async def getJob(self, job_id: str) -> Job | None:
        """Returns a job as it is now, or None."""
        return await Job.fromId(self, job_id)

    async def getJobState(self, job_id: str) -> str:
        """Returns a job's state, ``unknown`` if there is no such job."""
        return await self.inner.jobs.state(job_id)

    async def getJobs(
        self, types: Iterable[str], start: int = 0, end: int = -1, asc: bool = False
    ) -> list[Job]:
        """Returns jobs of states, newest first unless ``asc``; the range applies to each state.

        A page with missing hashes is filled up with the jobs behind it.
        """
        asked = [types] if isinstance(types, str) else types
        found: dict[str, Job] = {}
        for type in self.sanitizeJobTypes(asked):
            for job in await self._page(type, start, end, asc):
                found.setdefault(str(job.id), job)
        return list(found.values())

    async def _page(self, type: str, start: int, end: int, asc: bool) -> list[Job]:
        broker = self.store
        places = _PLACES.get(type, (type,))
        if start < 0 or end < -1:
            counts = await broker.counts()
            total = sum(counts.get(place, 0) for place in places)
            start, end = (max(0, total + at) if at < 0 else at for at in (start, end))
        last = _END if end == -1 else end
        pages = 1 if end == -1 else PAGES
        found: list[Job] = []
        for place in places:
            if last >= start:
                page = await broker.page_records(place, start, last, oldest=asc, pages=pages)
                found += (job_of(self, job_id, fields) for job_id, fields in page)
        return found if end == -1 else found[: max(0, end - start + 1)]

    async def getActive(self, start: int = 0, end: int = -1) -> list[Job]:
        """Returns leased jobs, oldest first."""
        return await self.getJobs(["active"], start, end, True)

    async def getCompleted(self, start: int = 0, end: int = -1) -> list[Job]:
        """Returns completed jobs, newest first."""
        return await self.getJobs(["completed"], start, end, False)

    async def getDelayed(self, start: int = 0, end: int = -1) -> list[Job]:
        """Returns delayed jobs, earliest first."""
        return await self.getJobs(["delayed"], start, end, True)

    async def getFailed(self, start: int = 0, end: int = -1) -> list[Job]:
        """Returns failed jobs, newest first."""
        return await self.getJobs(["failed"], start, end, False)

    async def getPrioritized(self, start: int = 0, end: int = -1) -> list[Job]:
        """Returns jobs that wait with a priority, next first."""
        return await self.getJobs(["prioritized"], start, end, True)

    async def getWaiting(self, start: int = 0, end: int = -1) -> list[Job]:
        """Returns jobs that wait without a priority, next first."""
        return await self.getJobs(["waiting"], start, end, True)

    async def getWaitingChildren(self, start: int = 0, end: int = -1) -> list[Job]:
        """Returns jobs that wait for children, oldest first."""
        return await self.getJobs(["waiting-children"], start, end, True)

    def sanitizeJobTypes(self, types: Iterable[str]) -> list[str]:
        """Returns states without duplicates, in the given order; all states if none is given."""
        return list(dict.fromkeys(types)) or list(TYPES)

    async def getJobCounts(self, *types: str) -> dict[str, int]:
        """Returns how many jobs are in each state."""
        counts = await self.store.counts()
        return {
            type: sum(counts.get(place, 0) for place in _PLACES.get(type, (type,)))
            for type in self.sanitizeJobTypes(types)
        }

    async def getJobCountByTypes(self, *types: str) -> int:
        """Returns how many jobs are in some states together."""
        return sum((await self.getJobCounts(*types)).values())

    async def getCompletedCount(self) -> int:
        """Returns how many jobs have completed."""
        return await self.getJobCountByTypes("completed")

    async def getDelayedCount(self) -> int:
        """Returns how many jobs are delayed."""
        return await self.getJobCountByTypes("delayed")

    async def getFailedCount(self) -> int:
        """Returns how many jobs have failed."""
        return await self.getJobCountByTypes("failed")

    async def getWaitingCount(self) -> int:
        """Returns how many jobs wait without a priority."""
        return await self.getJobCountByTypes("waiting")

    async def getActiveCount(self) -> int:
        """Returns how many jobs are leased; as in Node."""
        return await self.getJobCountByTypes("active")

    async def getPrioritizedCount(self) -> int:
        """Returns how many jobs wait with a priority; as in Node."""
        return await self.getJobCountByTypes("prioritized")

    async def getWaitingChildrenCount(self) -> int:
        """Returns how many jobs wait for children; as in Node."""
        return await self.getJobCountByTypes("waiting-children")

    async def count(self) -> int:
        """Returns how many jobs wait for any reason; as in Node."""
        return await self.getJobCountByTypes("waiting", "delayed", "prioritized", "waiting-children")

    async def getCountsPerPriority(self, priorities: Iterable[int]) -> dict[str, int]:
        """Returns how many jobs wait with each of these priorities."""
        found = await self.inner.jobs.counts_per_priority(dict.fromkeys(priorities))
        return {str(priority): count for priority, count in found.items()}

    async def getJobLogs(
        self, job_id: str, start: int = 0, end: int = -1, asc: bool = True
    ) -> dict[str, Any]:
        """Returns rows of a job's log as ``logs``, and how many there are as ``count``."""
        broker = self.store
        rows = await broker.logs.read(job_id)
        page = rows if asc else rows[::-1]
        last = len(rows) + end if end < 0 else end
        first = max(0, len(rows) + start) if start < 0 else start
        return {"logs": page[first : last + 1], "count": len(rows)}

    async def getDeduplicationJobId(self, id: str) -> str | None:
        """Returns the job that owns the window of a deduplication id, or None."""
        return await self.inner.deduplication.owner(id)

    async def getMetrics(self, type: str, start: int = 0, end: int = -1) -> dict[str, Any]:
        """Returns how many jobs completed or failed per minute; as in Node."""
        series = await self.inner.jobs.metrics(type, first=start, last=end)
        meta = {
            "count": series.count,
            "prevTS": series.previous_at,
            "prevCount": series.previous_count,
        }
        return {"meta": meta, "data": series.points, "count": series.total}

    async def get_workers(self) -> list[dict[str, str]]:
        """Returns the connections of this queue's workers, by the names that they set."""
        broker = self.store
        try:
            clients = await broker.clients()
        except ScriptError as error:
            if "unknown command" in str(error):
                return [{"name": "CLIENT LIST not supported"}]
            raise
        own, plain = broker.keys.client_name(), self.qualifiedName
        found = []
        for client in clients:
            name = client.get("name", "")
            if name in (own, plain) or name.startswith((f"{own}:w:", f"{plain}:w:")):
                found.append({**client, "rawname": name, "name": self.name})
        return found

    async def get_workers_count(self) -> int:
        """Returns how many there are."""
        return len(await self.get_workers())

    async def getWorkers(self) -> list[dict[str, str]]:
        """As ``get_workers``, under Node's name."""
        return await self.get_workers()

    async def getWorkersCount(self) -> int:
        """As ``get_workers_count``, under Node's name."""
        return await self.get_workers_count()

    # -- schedulers

    @property
    def jobScheduler(self) -> JobScheduler:
        """The queue's schedulers."""
        if self._job_scheduler is None:
            self._job_scheduler = JobScheduler(self)
        return self._job_scheduler

    async def upsertJobScheduler(
        self,
        job_scheduler_id: str,
        repeat_opts: Mapping[str, Any],
        job_name: str | None = None,
        job_data: Any = None,
        opts: Mapping[str, Any] | None = None,
        override: bool = True,
        producer_id: str | None = None,
    ) -> Job | None:
        """Makes or changes a scheduler; see ``JobScheduler.upsertJobScheduler``."""
        return await self.jobScheduler.upsertJobScheduler(
            job_scheduler_id,
            repeat_opts,
            job_name or job_scheduler_id,
            job_data,
            opts,
            override=override,
            producer_id=producer_id,
        )

    async def removeJobScheduler(self, job_scheduler_id: str) -> int:
        """Removes a scheduler; returns 0 if it existed, 1 if not."""
        return await self.jobScheduler.removeJobScheduler(job_scheduler_id)

    async def isJobScheduler(self, job_scheduler_id: str) -> bool:
        """Returns whether there is such a scheduler."""
        return await self.jobScheduler.isJobScheduler(job_scheduler_id)

    async def getJobScheduler(self, job_scheduler_id: str) -> dict[str, Any] | None:
        """Returns a scheduler as it is now, or None."""
        return await self.jobScheduler.getScheduler(job_scheduler_id)

    async def getJobSchedulers(
        self, start: int = 0, end: int = -1, asc: bool = False
    ) -> list[dict[str, Any]]:
        """Returns schedulers by the time of their next job, latest first unless ``asc``."""
        return await self.jobScheduler.getJobSchedulers(start, end, asc)

    async def getJobSchedulersCount(self) -> int:
        """Returns how many there are."""
        return await self.jobScheduler.getSchedulersCount()

    async def close(self) -> None:
        """Closes the connections."""
        await self._close()


def _note_added(job: Job, added: Added) -> None:
    """Stores the id of an added job and, unless the caller chose it, the server's time of the add."""
    job.id = added.id
    if added.created and not job.opts.get("timestamp"):
        job.timestamp = added.at_ms


async def add_below(queue: OxcartQueue, job: Job, tree: Tree) -> str:
    """Adds a job below the parent that its options name; returns its id.

    Raises:
        TypeError: There is no such parent.
    """
    assert job.parent is not None
    base = str(job.parent["queueKey"])
    prefix, _, name = base.rpartition(":")
    if queue._core.server.is_cluster and name.startswith("{") and name.endswith("}") and "{" not in prefix:
        name = name[1:-1]
    broker = BullMQBroker(queue._core.server, name, prefix=prefix)
    adding = broker.flows.add_children(str(job.parent["id"]), [tree], timeout=queue._core.add_timeout)
    try:
        (added,) = await translate_refusal(adding, "addJob", job.id, parent=job.parentKey)
    finally:
        await asyncio.shield(broker.close())
    return added.id


def _count(value: Any, field: str) -> int:
    if type(value) is not int or value < 1:
        raise ValidationError(field, "an integer, at least 1", value)
    return value
