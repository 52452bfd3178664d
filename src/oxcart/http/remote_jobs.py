"""The parts of a queue behind an HTTP API: its jobs, dead letters and limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import quote

import msgspec

from oxcart.broker.port.results import Cancelled, DeadDone
from oxcart.dead_letters import DeadLetters, Which
from oxcart.handle import JobHandle, R
from oxcart.http.refused import ApiRefused, unsupported
from oxcart.http.times import parse_time_ms, rfc3339, rfc3339_ms
from oxcart.http.values import JobBody, Page
from oxcart.jobs import Cancellation, Found, Jobs, OnProgress, When
from oxcart.limits import Limits, Rate
from oxcart.model import payload
from oxcart.model.duration import Duration, parse_ms
from oxcart.model.errors import JobLocked, JobNotFound, WrongState
from oxcart.model.job import Job
from oxcart.model.options import DEFAULT_OPTIONS
from oxcart.model.state import State

if TYPE_CHECKING:
    from oxcart.http.remote import RemoteQueue

#: The state on the wire of each formal state.
_WIRE = {
    State.PENDING: "waiting-children",
    State.SCHEDULED: "waiting",
    State.RUNNING: "active",
    State.DELAYED: "delayed",
    State.RETRYING: "delayed",
    State.COMPLETED: "completed",
    State.FAILED: "failed",
    State.DEAD_LETTER: "failed",
    State.CANCELLED: "failed",
}
#: Seconds that a wait without a limit lasts: a year, in calls of a minute.
_FOR_EVER = 365 * 86_400
#: Lines of a log that are read.
MOST_LINES = 10_000


def job_of(body: JobBody) -> Job:
    """Returns a job as the API shows it: without stack traces, parents and fields of other clients."""
    state = State(body.state)
    started, ended = _ms(body.started_at), _ms(body.completed_at)
    options = DEFAULT_OPTIONS.replace(attempts=body.max_attempts, tags=body.tags or None)
    if body.correlation_id is not None:
        options = options.replace(correlation_id=body.correlation_id)
    if body.tags:
        options = options.replace(tags=body.tags)
    return Job(
        id=body.id,
        name=body.type,
        queue=body.queue,
        data=payload.decode(msgspec.json.encode(body.payload)),
        options=options,
        timestamp=parse_time_ms(body.created_at, "created_at"),
        priority=body.priority,
        progress={"percent": body.progress, "message": body.progress_message}
        if body.progress_message
        else body.progress,
        attempts_made=body.attempt - (state is State.RUNNING),
        attempts_started=body.attempt,
        processed_on=started,
        finished_on=ended,
        worker_id=body.worker,
        failed_reason=body.last_error,
        state=state,
        category=body.error_category,
    )


def _ms(text: str | None) -> int | None:
    return None if text is None else parse_time_ms(text, "time")


class RemoteHandle(JobHandle[R]):
    """A job behind an HTTP API, by its id."""

    __slots__ = ()

    async def result(self, timeout: Duration | None = None) -> R:
        """Waits for the job's result.

        Raises:
            JobFailed: The job failed for good.
            ResultTimeout: It has not ended in time.
            JobNotFound: It was removed.
        """
        seconds = _FOR_EVER if timeout is None else parse_ms(timeout, "timeout") / 1000
        client = _remote(self.queue).client
        value: R = await client.result(self.id, timeout=seconds, queue=self.queue.name)
        return value

    async def logs(self) -> list[str]:
        """Returns the job's log, at most its last 10 000 lines."""
        client = _remote(self.queue).client
        path = f"/jobs/{quote(self.id, safe='')}/logs"
        params = {"queue": self.queue.name, "first": -MOST_LINES, "limit": MOST_LINES}
        answer = await client.send("GET", path, params=params, job_id=self.id)
        body = msgspec.json.decode(answer.content, type=_Log)
        if body.hidden:
            raise unsupported("logs", "the log of a job with this key", "use a key that may read payloads")
        return body.lines


class _Log(msgspec.Struct):
    lines: list[str]
    hidden: bool = False


def _remote(queue: Any) -> RemoteQueue:
    found: RemoteQueue = queue
    return found


class RemoteJobs(Jobs):
    """The jobs of a queue behind an HTTP API."""

    @property
    def _remote(self) -> RemoteQueue:
        return _remote(self._queue)

    async def _job(self, method: str, job_id: str, rest: str = "", body: Any = None, **params: Any) -> Any:
        path = f"/jobs/{quote(job_id, safe='')}{rest}"
        given = {"queue": self._queue.name, **params}
        try:
            return await self._remote.client.send(method, path, body, params=given, job_id=job_id)
        except ApiRefused as error:
            if error.status == 409:
                raise (JobLocked if method == "DELETE" else WrongState)(job_id, str(error)) from error
            raise

    async def get(self, job_id: str) -> Job | None:
        """Returns a job as it is now, or None. Its payload is None if the caller's role hides it."""
        try:
            answer = await self._job("GET", job_id, payload="true")
        except JobNotFound:
            return None
        return job_of(msgspec.json.decode(answer.content, type=JobBody))

    async def get_many(self, job_ids: Sequence[str]) -> Sequence[Job | None]:
        """Returns jobs as they are now, None for each that does not exist; one request each."""
        return [await self.get(job_id) for job_id in job_ids]

    def handle(self, job_id: str, name: str = "") -> JobHandle[Any]:
        """Returns a handle on a job by its id; reads nothing."""
        return RemoteHandle(self._queue, job_id, name, False)

    async def state(self, job_id: str) -> str:
        """Returns a job's state in the words of the wire, ``unknown`` for none."""
        job = await self.get(job_id)
        return "unknown" if job is None or job.state is None else _WIRE[job.state]

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
        scan: int = 0,
    ) -> Found:
        """Returns the newest jobs that match, and how many match; see `Jobs.search`.

        Raises:
            NotSupported: ``first``, ``oldest`` or ``wire`` are set: the API's pages continue by a cursor.
        """
        if first or oldest or wire:
            raise unsupported("search", "first, oldest and wire of a search", "use oxcart.http.Client.list")
        given = {
            "state": _texts(state),
            "type": _texts(name),
            "reason": reason,
            "worker": _texts(worker),
            "category": _texts(category),
            "tag": [f"{key}={value}" for key, value in (tags or {}).items()],
            "correlation_id": correlation_id,
            "priority": [priority] if isinstance(priority, int) else list(priority or ()),
            "since": _when(since),
            "until": _when(until),
            "limit": limit,
            "queue": self._queue.name,
        }
        params = {field: value for field, value in given.items() if value not in (None, [])}
        page = await self._remote.client.call("GET", "/jobs", Page, params=params)
        jobs = [job_of(body) for body in page.jobs]
        return Found(
            jobs=jobs,
            wire_states=[_WIRE[job.state or State.PENDING] for job in jobs],
            matched=page.matched,
            exact=page.exact,
            looked_at=page.matched,
            total=page.matched,
        )

    async def retry(self, job_id: str, *, reset: bool = False) -> None:
        """Lets a failed job run again.

        Raises:
            JobNotFound: There is no such job.
            WrongState: It has not failed.
        """
        await self._job("POST", job_id, "/retry", {"reset_attempts": reset})

    async def remove(self, job_id: str, *, children: bool = False) -> None:
        """Removes a job that no worker runs.

        Raises:
            JobNotFound: There is no such job.
            JobLocked: A worker runs it.
            NotSupported: ``children`` is set.
        """
        if children:
            raise unsupported("flows", "the removal of children")
        await self._job("DELETE", job_id)

    async def cancel(self, job_id: str, reason: str = "", *, force: bool = False) -> Cancellation:
        """Cancels a job; see `Jobs.cancel`.

        Raises:
            JobNotFound: There is no such job.
            WrongState: It has ended, or cannot be cancelled.
        """
        answer = await self._job("POST", job_id, "/cancel", {"reason": reason, "force": force})
        state = msgspec.json.decode(answer.content, type=JobBody).state
        return Cancellation.CANCELLED if state == State.CANCELLED else Cancellation.REQUESTED

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
        """Cancels jobs that match, at most 10 000; see `Jobs.cancel_all`."""
        body = _chosen(
            state=_texts(state),
            type=_texts(name),
            tags=dict(tags or {}),
            correlation_id=correlation_id,
            older_than=_span(older_than, "older_than"),
            newer_than=_span(newer_than, "newer_than"),
            reason=reason,
            force=force,
            dry_run=dry_run,
            limit=limit,
        )
        found = await self._remote.client.call(
            "POST", f"{self._remote.path}/cancel", dict[str, Any], body, extra=60
        )
        return Cancelled(**found)

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
        """Lets ended jobs run again, at most 10 000; returns how many. See `Jobs.retry_all`."""
        body = _chosen(state=state, since=_when(since), until=_when(until), limit=limit, reset_attempts=reset)
        found = await self._remote.client.call(
            "POST", f"{self._remote.path}/retry", dict[str, Any], body, extra=60
        )
        return int(found["retried"])

    async def clean(
        self,
        state: str = "completed",
        *,
        grace: Duration = 0,
        limit: int | None = None,
        progress: OnProgress | None = None,
    ) -> int:
        """Removes jobs of a state that are older than ``grace``, at most 10 000; returns how many."""
        body = _chosen(state=state, grace=_span(grace, "grace"), limit=limit)
        return await self._changed("clean", body)

    async def clear(self, *, delayed: bool = False, progress: OnProgress | None = None) -> int:
        """Removes every waiting job; returns how many."""
        return await self._changed("clear", {"delayed": delayed})

    async def obliterate(self, *, force: bool = False, progress: OnProgress | None = None) -> int:
        """Removes the queue with everything in it; returns how many jobs it had."""
        return await self._changed("obliterate", {"name": self._queue.name, "force": force})

    async def _changed(self, verb: str, body: dict[str, Any]) -> int:
        found = await self._remote.client.call(
            "POST", f"{self._remote.path}/{verb}", dict[str, int], body, extra=60
        )
        return found["changed"]


class _Letters(msgspec.Struct):
    jobs: list[JobBody]


class RemoteDeadLetters(DeadLetters):
    """The dead letters of a queue behind an HTTP API."""

    @property
    def _path(self) -> str:
        return f"{_remote(self._queue).path}/dead-letters"

    async def list(self, *, limit: int = 100, oldest: bool = False, **which: Unpack[Which]) -> Sequence[Job]:
        """Returns dead letters, newest first.

        Raises:
            NotSupported: ``oldest``, or a filter by time or ``permanent``.
        """
        known = {"name", "category", "reason", "tags", "correlation_id"}
        if oldest or which.keys() - known:
            raise unsupported("dead_letters", "oldest, and filters by time and permanent")
        tags = which.get("tags") or {}
        params = _chosen(
            limit=limit,
            type=_texts(which.get("name")),
            category=_texts(which.get("category")),
            reason=which.get("reason"),
            tag=[f"{key}={value}" for key, value in tags.items()],
            correlation_id=which.get("correlation_id"),
        )
        answer = await _remote(self._queue).client.send("GET", self._path, params=params)
        return [job_of(body) for body in msgspec.json.decode(answer.content, type=_Letters).jobs]

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
        """Lets dead letters that match run again, at most 10 000."""
        if rate is not None:
            raise unsupported("dead_letters", "a rate of replays")
        return await self._many("replay", _chosen(reset_attempts=reset, dry_run=dry_run, limit=limit), which)

    async def purge_all(
        self,
        *,
        dry_run: bool = False,
        limit: int | None = None,
        progress: OnProgress | None = None,
        **which: Unpack[Which],
    ) -> DeadDone:
        """Removes dead letters that match for good, at most 10 000."""
        return await self._many("purge", _chosen(dry_run=dry_run, limit=limit), which)

    async def _many(self, verb: str, body: dict[str, Any], which: Which) -> DeadDone:
        given: dict[str, Any] = dict(which)
        if given.keys() - {
            "name",
            "category",
            "reason",
            "tags",
            "correlation_id",
            "older_than",
            "newer_than",
        }:
            raise unsupported("dead_letters", "rate, since, until and permanent for dead letters")
        body |= _chosen(
            type=_texts(given.get("name")),
            category=_texts(given.get("category")),
            reason=given.get("reason"),
            tags=dict(given.get("tags") or {}),
            correlation_id=given.get("correlation_id"),
            older_than=_span(given.get("older_than"), "older_than"),
            newer_than=_span(given.get("newer_than"), "newer_than"),
        )
        client = _remote(self._queue).client
        found = await client.call("POST", f"{self._path}/{verb}", dict[str, Any], body, extra=60)
        return DeadDone(
            matched=found["matched"], done=found["changed"], ids=found["ids"], dry_run=found["dry_run"]
        )


class RemoteLimits(Limits):
    """The limits of a queue behind an HTTP API."""

    async def _change(self, body: dict[str, Any] | None = None) -> dict[str, Any]:
        queue = _remote(self._queue)
        method = "GET" if body is None else "PUT"
        found: dict[str, Any] = await queue.client.call(method, f"{queue.path}/limits", dict[str, Any], body)
        return found

    async def set_concurrency(self, most: int) -> None:
        """Sets how many jobs run at once."""
        await self._change({"concurrency": most})

    async def concurrency(self) -> int | None:
        """Returns how many jobs run at once; None without a limit."""
        found: int | None = (await self._change()).get("concurrency")
        return found

    async def remove_concurrency(self) -> None:
        """Removes that limit."""
        await self._change({"concurrency": None})

    async def set_rate(self, most: int, *, per: Duration) -> None:
        """Sets how many jobs start in a time."""
        await self._change({"rate": {"most": most, "per": f"{parse_ms(per, 'per', minimum=1)}ms"}})

    async def rate(self) -> Rate | None:
        """Returns how many jobs start in a time; None without a limit."""
        found = (await self._change()).get("rate")
        return None if found is None else msgspec.convert(found, Rate)

    async def remove_rate(self) -> None:
        """Removes that limit."""
        await self._change({"rate": None})


def _texts(given: str | Iterable[str] | None) -> list[str]:
    return [] if given is None else [given] if isinstance(given, str) else list(given)


def _span(given: Duration | None, field: str) -> str | None:
    return None if given is None else f"{parse_ms(given, field)}ms"


def _when(given: When | None) -> str | None:
    if isinstance(given, datetime):
        return rfc3339(given)
    if isinstance(given, int):
        return rfc3339_ms(given)
    return None if given is None else given if isinstance(given, str) else f"{int(given.total_seconds())}s"


def _chosen(**given: Any) -> dict[str, Any]:
    return {field: value for field, value in given.items() if value not in (None, [], {}, "")}
