"""``queue.jobs``: the existing jobs of a queue, one by one and all at once.

    job = await emails.jobs.get(job_id)
    await emails.jobs.cancel(job_id, "the order was withdrawn")
    await emails.jobs.clean("completed", grace="7d", progress=lambda at: print(at.done, "of", at.total))
    await emails.jobs.retry_all(since=yesterday)

Operations on many jobs work in bounded steps, so that they never block the server for long. Cancelling one
keeps its partial result, and calling it again continues from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, cast

from oxcart.broker.cancellations import refusal
from oxcart.broker.port.parts import Bulk, Cancelling
from oxcart.broker.port.results import CancelCode, Cancellation, Cancelled, Series
from oxcart.broker.port.steps import SignalCode
from oxcart.broker.progress import OnProgress, Progress, silent
from oxcart.broker.search import MOST, Found, Scan, search
from oxcart.handle import JobHandle
from oxcart.model import payload
from oxcart.model.duration import Duration, parse_ms
from oxcart.model.errors import AmbiguousId, JobNotFound, ReplyCode, ValidationError
from oxcart.model.failure_groups import FailureGroup, FailureGroups, Failures
from oxcart.model.filter import JobFilter
from oxcart.model.job import Job
from oxcart.model.moment import When, parse_moment
from oxcart.model.options import MAX_PRIORITY
from oxcart.model.search import WIRE, JobSearch, choose_lists
from oxcart.model.steps import check_step_name

if TYPE_CHECKING:
    from oxcart.queue import Queue

__all__ = [
    "Cancellation",
    "Cancelled",
    "FailureGroup",
    "Failures",
    "Found",
    "Jobs",
    "OnProgress",
    "Progress",
    "Series",
    "When",
]

#: The states by which jobs can be listed, and their places on the wire.
LISTABLE = WIRE
#: The states whose jobs can be cancelled, in the order in which jobs move: a job that moves meanwhile is
#: met again, not missed.
CANCELLABLE = ("waiting-children", "delayed", "prioritized", "waiting", "active")
CLEANABLE = ("completed", "failed", "waiting", "prioritized", "delayed", "active")
FINISHED = ("failed", "completed")

#: The shortest beginning of an id that is looked up, and how many ids an ambiguous one lists.
SHORTEST_ID = 4
CANDIDATES = 10

#: The reason of a cancellation without one.
NO_REASON = "cancelled"


class Jobs:
    """The jobs of a queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    # -- reading

    async def get(self, job_id: str) -> Job | None:
        """Returns a job as it is now, or None."""
        return (await self._queue._core.broker.look([job_id]))[0]

    async def get_many(self, job_ids: Sequence[str]) -> Sequence[Job | None]:
        """Returns jobs as they are now, None for each that does not exist."""
        return await self._queue._core.broker.look(job_ids)

    async def resolve(self, start: str) -> str:
        """Returns the id of the only job whose id begins with a text of at least 4 characters.

        A whole id is returned as it is. A shortened one costs a scan over the keys of the server.

        Raises:
            JobNotFound: No job has such an id.
            AmbiguousId: Several jobs have such ids; the error lists some.
        """
        if await self.get(start) is not None:
            return start
        broker = self._queue._core.broker
        found = await broker.ids_beginning(start, CANDIDATES) if len(start) >= SHORTEST_ID else []
        if not found:
            raise JobNotFound(start)
        if len(found) > 1:
            raise AmbiguousId(start, found[:CANDIDATES], len(found) > CANDIDATES)
        return found[0]

    def handle(self, job_id: str, name: str = "") -> JobHandle[Any]:
        """Returns a handle on a job by its id; reads nothing."""
        return JobHandle(self._queue, job_id, name, False)

    async def state(self, job_id: str) -> str:
        """Returns a job's state in the words of the wire, ``unknown`` for none."""
        return (await self._queue._core.broker.states([job_id]))[0]

    async def list(
        self, state: str, *, first: int = 0, limit: int = 100, oldest: bool = False
    ) -> Sequence[Job]:
        """Returns a page of jobs in a state; those of lanes follow the queue's own.

        Args:
            state: ``waiting``, ``prioritized``, ``active``, ``delayed``, ``waiting-children``, ``completed``
                or ``failed``.
            first: How many to skip.
            limit: How many at most.
            oldest: Begin with the oldest instead of the newest.

        Raises:
            ValidationError: There is no such state.
        """
        _check_state(state, LISTABLE)
        if limit < 1:
            return []
        broker = self._queue._core.broker
        found: list[Job] = []
        for key in LISTABLE[state]:
            found += await broker.page(key, first, first + limit - 1, oldest=oldest)
        if len(found) < limit and broker.lanes is not None:
            found += await broker.lanes.page(LISTABLE[state], first, limit - len(found), oldest=oldest)
        return found[:limit]

    async def search(
        self,
        *,
        state: str | Iterable[str] | None = None,
        wire: bool = False,
        name: str | Iterable[str] | None = None,
        reason: str | None = None,
        worker: str | Iterable[str] | None = None,
        category: str | Iterable[str] | None = None,
        tags: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
        priority: int | Iterable[int] | None = None,
        since: When | None = None,
        until: When | None = None,
        first: int = 0,
        limit: int = 20,
        oldest: bool = False,
        scan: int = MOST,
        count: bool = True,
    ) -> Found:
        """Returns a page of the jobs that match, and how many match.

        Jobs are sorted by their last change: their end, or their latest start, or their add. Times apply to
        the same. Of delayed and prioritized jobs, which the server keeps in the order of their turn, the last
        in turn are sorted so, unless the search reads them all. Jobs that move meanwhile may be missed.

        Args:
            state: Only jobs in these states: formal states, or states of the wire.
            wire: Whether ``failed`` and ``delayed``, which both vocabularies have, are the wire's.
            name: Only jobs of these names.
            reason: Only jobs whose failure contains this text, in any case.
            worker: Only jobs that a worker of these names claimed last; ``*`` stands for any text.
            category: Only jobs whose failure is of these categories.
            tags: Only jobs that have all of these tags.
            correlation_id: Only jobs of this correlation id.
            priority: Only jobs of these priorities, as numbers of the wire.
            since: Only jobs that changed at this time or later.
            until: Only jobs that changed at this time or earlier.
            first: How many to skip.
            limit: How many at most.
            oldest: Begin with the oldest instead of the newest.
            scan: How many jobs to read at most; ``exact`` of the result is false if there are more.
            count: Whether to count all that match. False reads completed and failed jobs only until the page
                is full: ``matched`` is a lower bound then, and ``exact`` false.

        Raises:
            ValidationError: There is no such state or category, or a time, tag or bound is invalid.
        """
        lists = choose_lists(state, wire=wire)
        if type(first) is not int or first < 0:
            raise ValidationError("first", "an integer, at least 0", first)
        check_limit(limit)
        chosen = await self._search(
            name, reason, worker, category, tags, correlation_id, since, until, priority
        )
        return await search(
            self._queue._core.broker,
            lists,
            chosen,
            first=first,
            limit=limit,
            oldest=oldest,
            most=_check_scan(scan),
            count=count,
        )

    async def failures(
        self,
        *,
        state: str | Iterable[str] = ("failed", "dead_letter"),
        name: str | Iterable[str] | None = None,
        reason: str | None = None,
        worker: str | Iterable[str] | None = None,
        category: str | Iterable[str] | None = None,
        tags: Mapping[str, str] | None = None,
        since: When | None = None,
        until: When | None = None,
        scan: int = MOST,
    ) -> Failures:
        """Groups failed jobs by their reason and by the frame that raised it, most frequent first.

        Ids, numbers and addresses in a reason are masked, so that failures that differ only in these are one
        group. The newest jobs are read first.

        Args:
            state: The formal states to read; add ``retrying`` for jobs whose next attempt is due.
            name: Only jobs of these names.
            reason: Only jobs whose failure contains this text, in any case.
            worker: Only jobs that a worker of these names claimed last; ``*`` stands for any text.
            category: Only jobs whose failure is of these categories.
            tags: Only jobs that have all of these tags.
            since: Only jobs that ended at this time or later.
            until: Only jobs that ended at this time or earlier.
            scan: How many jobs to read at most; ``exact`` of the result is false if there are more.

        Raises:
            ValidationError: There is no such state or category, or a time, tag or bound is invalid.
        """
        lists = choose_lists(state)
        chosen = await self._search(name, reason, worker, category, tags, None, since, until)
        reading = Scan(self._queue._core.broker, lists, chosen, most=_check_scan(scan))
        groups = FailureGroups()
        async for _, job in reading.run():
            groups.add(job)
        found = reading.found
        return Failures(groups.largest(), found.matched, found.exact, found.looked_at, found.total)

    async def counts_per_priority(self, priorities: Iterable[int] | None = None) -> dict[int, int]:
        """Returns how many jobs wait with each priority; 0 is that of jobs without one (not on Bridge).

        Args:
            priorities: The priorities to count; by default all that a job has.
        """
        asked = None if priorities is None else [*priorities]
        for one in asked or ():
            if type(one) is not int or not 0 <= one <= MAX_PRIORITY + 1:
                raise ValidationError("priorities", f"integers from 0 to {MAX_PRIORITY}", one)
        return await self._bulk.counts_per_priority(asked)

    async def metrics(self, state: str = "completed", *, first: int = 0, last: int = -1) -> Series:
        """Returns how many jobs completed (or failed) per minute.

        Workers count only with ``Worker(…, metrics=…)``, in Node with the option ``metrics``.

        Args:
            state: ``completed`` or ``failed``.
            first: The first point to read, the newest being 0.
            last: The last point to read; -1 for the oldest.
        """
        core = self._queue._core
        counts = core.part(core.broker.metrics, "minute_counts")
        return await counts.series(_finished(state), first, last)

    # -- one job

    async def retry(self, job_id: str, *, reset: bool = False) -> None:
        """Lets a finished job run again.

        Args:
            job_id: The job.
            reset: Whether to reset its attempts.

        Raises:
            JobNotFound: There is no such job.
            WrongState: It is neither failed nor completed.
        """
        state = "completed" if await self.state(job_id) == "completed" else "failed"
        await self._queue._core.broker.retry_job(job_id, state, reset=reset)

    async def remove(self, job_id: str, *, children: bool = False) -> None:
        """Removes a job that no worker runs.

        Args:
            job_id: The job.
            children: Whether to remove the jobs below it as well. Not with Bridge.

        Raises:
            JobNotFound: There is no such job.
            JobLocked: A worker runs it.
            NotSupported: The protocol has no children. Nothing was removed.
        """
        if children:
            self._queue.capabilities.require("flows")
        await self._queue._core.broker.remove_job(job_id, children=children)

    async def cancel(self, job_id: str, reason: str = "", *, force: bool = False) -> Cancellation:
        """Cancels a job.

        A waiting job has ended when this returns. The worker of a running job is asked to stop it, within
        a second if it can be reached. It cancels an async handler, kills a process with its children, and
        sets the cancel signal of a thread. If the handler still returns a result, the job completes.
        docs/guarantees.md lists how each kind of handler can be stopped.

        Args:
            job_id: The job.
            reason: The reason, for the job's record and its handler.
            force: Whether to end a running job at once, whatever its worker does. The worker loses the lease,
                and the handler's result is refused.

        Returns:
            ``CANCELLED``, or ``REQUESTED`` if the worker was asked to stop the job.

        Raises:
            JobNotFound: There is no such job.
            WrongState: It has ended.
            CannotCancel: A worker of a peer runs it, which cannot be asked; pass ``force``.
            SchedulerOwned: It is the next run of a schedule: remove the schedule.
        """
        (code,) = await self._cancelling.cancel([job_id], _reason(reason), force=force)
        if code == CancelCode.CANCELLED:
            return Cancellation.CANCELLED
        if code == CancelCode.ASKED:
            return Cancellation.REQUESTED
        raise refusal(code, job_id, await self.state(job_id) if code == ReplyCode.WRONG_STATE else "")

    async def signal(self, job_id: str, signal: str, data: Any = None) -> bool:
        """Sends a signal to a job, for ``await job.wait_signal(signal)`` in its handler.

        A job that waits for it runs at once. Otherwise the signal is kept in the job until its handler waits
        for it. Signals of one name are received in the order in which they were sent.

        Args:
            job_id: The job.
            signal: The signal's name.
            data: Anything JSON can hold.

        Returns:
            Whether the job waited for it.

        Raises:
            JobNotFound: There is no such job.
            WrongState: It has ended.
            StepError: The name is malformed, or over 1 MiB of signals wait for the job.
        """
        check_step_name(signal, "signal")
        broker = self._queue._core.broker
        body = payload.encode(data, field="signal data")
        if broker.sealer is not None:
            body = broker.sealer.seal("signal", job_id, body, signal)
        return await broker.steps.signal(job_id, signal, body) == SignalCode.WOKEN

    # -- many jobs

    async def cancel_all(
        self,
        *,
        state: str | Iterable[str] | None = None,
        name: str | Iterable[str] | None = None,
        tags: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
        older_than: Duration | None = None,
        newer_than: Duration | None = None,
        reason: str = "",
        force: bool = False,
        dry_run: bool = False,
        limit: int | None = None,
        progress: OnProgress | None = None,
    ) -> Cancelled:
        """Cancels all jobs that match.

        Args:
            state: Only jobs in these states; by default all that have not ended: ``waiting``,
                ``prioritized``, ``delayed`` (retries among them), ``waiting-children`` and ``active``.
            name: Only jobs of these names.
            tags: Only jobs that have all of these tags.
            correlation_id: Only jobs of this correlation id.
            older_than: Only jobs created at least this long ago.
            newer_than: Only jobs created within this time.
            reason: The reason, for the jobs' records.
            force: As in ``cancel``.
            dry_run: Change nothing; only return which jobs match.
            limit: How many at most.
            progress: Called after every step.
        """
        cancelling = self._cancelling
        chosen = JobFilter.build(
            now_ms=await self._queue._core.broker.now(),
            name=name,
            tags=tags,
            correlation_id=correlation_id,
            older_than=older_than,
            newer_than=newer_than,
        )
        return await cancelling.cancel_all(
            chosen,
            _cancellable(state),
            _reason(reason),
            force=force,
            dry_run=dry_run,
            limit=check_limit(limit),
            progress=progress or silent,
        )

    async def retry_all(
        self,
        state: str = "failed",
        *,
        since: When | None = None,
        until: When | None = None,
        limit: int | None = None,
        reset: bool = False,
        progress: OnProgress | None = None,
    ) -> int:
        """Lets all failed (or all completed) jobs run again; returns how many.

        Args:
            state: ``failed`` or ``completed``.
            since: Only jobs that ended at this time or later.
            until: Only jobs that ended at this time or earlier; by default now.
            limit: How many at most, in the order in which they ended; None for all.
            reset: Whether to reset their attempts.
            progress: Called after every step.
        """
        chosen, bulk = _finished(state), self._bulk
        return await bulk.retry_all(
            chosen,
            since_ms=await self._ms(since, "since") or 0,
            until_ms=await self._ms(until, "until"),
            limit=check_limit(limit),
            reset=reset,
            progress=progress or silent,
        )

    async def promote_all(
        self,
        *,
        until: datetime | int | None = None,
        limit: int | None = None,
        progress: OnProgress | None = None,
    ) -> int:
        """Promotes delayed jobs now, each by its priority; returns how many.

        Args:
            until: Only jobs that are due at this time or earlier: a datetime with a zone, or ms since 1970.
            limit: How many at most, the earliest due first; None for all.
            progress: Called after every step.
        """
        if isinstance(until, str | timedelta):  # would count back from now, and these jobs are to come
            raise ValidationError("until", "a datetime with a zone, or ms since 1970", until)
        until_ms, most = await self._ms(until, "until"), check_limit(limit)
        return await self._bulk.promote_all(until_ms=until_ms, limit=most, progress=progress or silent)

    async def clean(
        self,
        state: str = "completed",
        *,
        grace: Duration = 0,
        limit: int | None = None,
        progress: OnProgress | None = None,
    ) -> int:
        """Removes old jobs of a state; returns how many.

        Active jobs are removed only if they have no lease; the next runs of schedules stay.

        Args:
            state: ``completed``, ``failed``, ``waiting``, ``prioritized``, ``delayed`` or ``active``.
            grace: Younger jobs stay. A finished job counts from its end, another from its last start, and a
                job that never started from its creation.
            limit: How many to remove at most, oldest first; None for all.
            progress: Called after every step.

        Raises:
            ValidationError: There is no such state to clean.
        """
        _check_state(state, CLEANABLE)
        bulk, most = self._bulk, check_limit(limit)
        before_ms = await self._queue._core.broker.now() - parse_ms(grace, "grace")
        return await bulk.clean(LISTABLE[state], before_ms, limit=most, progress=progress or silent)

    async def clear(self, *, delayed: bool = False, progress: OnProgress | None = None) -> int:
        """Removes every waiting job; returns how many.

        Running and finished jobs stay, and so do the next runs of schedules.

        Args:
            delayed: Whether to remove delayed jobs as well.
            progress: Called after every step.
        """
        return await self._bulk.clear(delayed=delayed, progress=progress or silent)

    async def obliterate(self, *, force: bool = False, progress: OnProgress | None = None) -> int:
        """Removes the queue with all its jobs, lanes, schedules, limits and events; returns how many jobs.

        Args:
            force: Whether to remove jobs that workers run as well; their results will be refused.
            progress: Called after every step.

        Raises:
            QueueBusy: Workers run jobs of it. Nothing has changed.
        """
        return await self._bulk.obliterate(force=force, progress=progress or silent)

    async def remove_orphans(
        self, *, dry_run: bool = False, progress: OnProgress | None = None
    ) -> Sequence[str]:
        """Removes jobs that are in no state, which no worker would ever run; returns their ids.

        ``oxcart doctor --rescue`` puts them back instead, if they have not ended.

        Args:
            dry_run: Only return which.
            progress: Called after every step; it counts keys of the server.
        """
        core = self._queue._core
        rescue = core.part(core.broker.rescue, "rescue")
        return await rescue.remove_orphans(dry_run=dry_run, progress=progress or silent)

    async def _search(
        self,
        name: str | Iterable[str] | None,
        reason: str | None,
        worker: str | Iterable[str] | None,
        category: str | Iterable[str] | None,
        tags: Mapping[str, str] | None,
        correlation_id: str | None,
        since: When | None,
        until: When | None,
        priority: int | Iterable[int] | None = None,
    ) -> JobSearch:
        return JobSearch.build_search(
            now_ms=await self._queue._core.broker.now(),
            name=name,
            reason=reason,
            worker=worker,
            category=category,
            tags=tags,
            correlation_id=correlation_id,
            priority=priority,
            since=since,
            until=until,
        )

    async def _ms(self, at: When | None, field: str) -> int | None:
        return None if at is None else parse_moment(at, field, now_ms=await self._queue._core.broker.now())

    @property
    def _bulk(self) -> Bulk:
        core = self._queue._core
        return core.part(core.broker.bulk, "bulk")

    @property
    def _cancelling(self) -> Cancelling:
        core = self._queue._core
        return core.part(core.broker.cancelling, "cancelling")


def check_limit(limit: int | None) -> int | None:
    """Returns how many jobs an operation may touch.

    Raises:
        ValidationError: It is no integer above 0.
    """
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ValidationError("limit", "an integer, at least 1", limit)
    return limit


def _check_scan(scan: int) -> int:
    if type(scan) is not int or scan < 1:
        raise ValidationError("scan", "an integer, at least 1", scan)
    return scan


def _check_state(state: str, known: Iterable[str]) -> None:
    if state not in known:
        raise ValidationError("state", "one of " + ", ".join(known), state)


def _finished(state: str) -> Literal["failed", "completed"]:
    _check_state(state, FINISHED)
    return cast(Literal["failed", "completed"], state)


def _cancellable(state: str | Iterable[str] | None) -> list[str]:
    names = CANCELLABLE if state is None else [state] if isinstance(state, str) else [*state]
    for name in names:
        _check_state(name, CANCELLABLE)
    return [key for name in CANCELLABLE if name in names for key in LISTABLE[name]]


def _reason(reason: str) -> str:
    if not isinstance(reason, str):
        raise ValidationError("reason", "text", reason)
    return reason or NO_REASON
