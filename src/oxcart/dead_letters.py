"""``queue.dead_letters``: lists, replays and purges jobs that used up their attempts or their lifetime.

    for job in await queue.dead_letters.list(category="timeout", newer_than="1d"):
        print(job.id, job.failed_reason)
    await queue.dead_letters.replay_all(tags={"tenant": "acme"}, rate=50)

A dead letter is not a failed job. A job that failed for good (a permanent error) would fail again; a dead
letter may succeed another time. Cancelled jobs are neither. Jobs that Node's workers gave up are dead letters
too. On Bridge every job that failed for good is a dead letter, as its specification defines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict, Unpack

from oxcart.broker.port import parts
from oxcart.broker.port.results import DeadDone, DeadVerb, DeadWork
from oxcart.broker.progress import OnProgress, silent
from oxcart.jobs import check_limit
from oxcart.model.duration import Duration
from oxcart.model.errors import JobNotFound, ValidationError, WrongState
from oxcart.model.filter import JobFilter
from oxcart.model.job import Job
from oxcart.model.moment import When

if TYPE_CHECKING:
    from oxcart.queue import Queue

__all__ = ["DeadDone", "DeadLetters", "Which"]

_NOT_DEAD = (
    "job {} is no dead letter: it has not ended, has completed, was cancelled, or has a permanent failure "
    "(to replay that, pass permanent=True)"
)


class Which(TypedDict, total=False):
    """A filter of dead letters; a key that is left out matches all.

    Keys: ``name`` (one or several), ``category`` of the last failure (one or several), ``reason`` (a part of
    the failure's text or code, in any case of ASCII letters), ``tags`` (all of them), ``correlation_id``; of
    their end ``older_than`` and ``newer_than`` (ages), or ``since`` and ``until`` (times, or how long ago);
    ``permanent`` adds jobs that failed for good.
    """

    name: str | Iterable[str] | None
    category: str | Iterable[str] | None
    reason: str | None
    tags: Mapping[str, str] | None
    correlation_id: str | None
    older_than: Duration | None
    newer_than: Duration | None
    since: When | None
    until: When | None
    permanent: bool


class DeadLetters:
    """The dead letters of a queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def list(self, *, limit: int = 100, oldest: bool = False, **which: Unpack[Which]) -> Sequence[Job]:
        """Returns dead letters, newest first unless ``oldest``.

        Args:
            limit: How many at most.
            oldest: Begin with the oldest.
            **which: As in `Which`.
        """
        work = DeadWork("list", await self._filter(which), newest=not oldest, limit=check_limit(limit))
        found = await self._store.run(work)
        jobs = await self._queue._core.broker.look(found.ids, lenient=True)
        return [job for job in jobs if job is not None]

    async def count(self, **which: Unpack[Which]) -> int:
        """Returns how many dead letters there are."""
        return (await self._store.run(DeadWork("list", await self._filter(which)))).matched

    async def get(self, job_id: str, *, permanent: bool = False) -> Job:
        """Returns a dead letter with its recorded failures.

        Args:
            job_id: The job.
            permanent: Whether a job that failed for good counts as well.

        Raises:
            JobNotFound: There is no such job.
            WrongState: It is no dead letter.
        """
        found = await self._store.apply("list", [job_id], permanent=permanent)
        job = await self._queue.jobs.get(job_id)
        if job is None:
            raise JobNotFound(job_id)
        if not found:
            raise WrongState(job_id, _NOT_DEAD.format(job_id))
        return job

    async def replay(self, job_id: str, *, reset: bool = True, permanent: bool = False) -> None:
        """Lets a dead letter run again.

        Args:
            job_id: The job.
            reset: Whether to reset its attempts; otherwise it has one more.
            permanent: Whether a job that failed for good counts as well.

        Raises:
            JobNotFound: There is no such job.
            WrongState: It is no dead letter.
        """
        await self._one("replay", job_id, reset, permanent)

    async def purge(self, job_id: str, *, permanent: bool = False) -> None:
        """Removes a dead letter for good.

        Args:
            job_id: The job.
            permanent: Whether a job that failed for good counts as well.

        Raises:
            JobNotFound: There is no such job.
            WrongState: It is no dead letter.
        """
        await self._one("purge", job_id, False, permanent)

    async def replay_all(
        self,
        *,
        reset: bool = True,
        rate: float | None = None,
        dry_run: bool = False,
        limit: int | None = None,
        progress: OnProgress | None = None,
        **which: Unpack[Which],
    ) -> DeadDone:
        """Replays all dead letters that match, oldest first; a dry run only returns which.

        Args:
            reset: As in ``replay``.
            rate: How many per second at most, so that the cause of the failures is not overloaded again.
            dry_run: Change nothing.
            limit: How many at most.
            progress: Called after every step.
            **which: As in `Which`.
        """
        if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float) or not rate > 0):
            raise ValidationError("rate", "a number of jobs per second above 0", rate)
        return await self._all("replay", dry_run, which, limit, progress, reset, rate)

    async def purge_all(
        self,
        *,
        dry_run: bool = False,
        limit: int | None = None,
        progress: OnProgress | None = None,
        **which: Unpack[Which],
    ) -> DeadDone:
        """Removes all dead letters that match, for good; a dry run only returns which.

        Args:
            dry_run: Change nothing.
            limit: How many at most.
            progress: Called after every step.
            **which: As in `Which`.
        """
        return await self._all("purge", dry_run, which, limit, progress, False, None)

    async def _one(self, verb: DeadVerb, job_id: str, reset: bool, permanent: bool) -> None:
        if await self._store.apply(verb, [job_id], reset=reset, permanent=permanent):
            return
        if await self._queue.jobs.get(job_id) is None:
            raise JobNotFound(job_id)
        raise WrongState(job_id, _NOT_DEAD.format(job_id))

    async def _all(
        self,
        verb: DeadVerb,
        dry_run: bool,
        which: Which,
        limit: int | None,
        progress: OnProgress | None,
        reset: bool,
        rate: float | None,
    ) -> DeadDone:
        return await self._store.run(
            DeadWork(
                "list" if dry_run else verb,
                await self._filter(which),
                reset=reset,
                limit=check_limit(limit),
                rate=None if dry_run else rate,
                progress=progress or silent,
            )
        )

    @property
    def _store(self) -> parts.DeadLetters:
        broker = self._queue._core.broker
        return broker.capabilities.part(broker.dead_letters, "dead_letters")

    async def _filter(self, which: Which) -> JobFilter:
        return JobFilter.build(now_ms=await self._queue._core.broker.now(), **which)
