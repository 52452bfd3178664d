"""The parts of a queue behind an HTTP API that are about its jobs, dead letters included."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
from msgspec import UNSET, UnsetType

from oxcart.broker.port.results import Cancelled
from oxcart.handle import JobHandle, R
from oxcart.http.refused import ApiRefused, unsupported
from oxcart.http.times import parse_time_ms, rfc3339, rfc3339_ms
from oxcart.http.values import JobBody, Page
from oxcart.jobs import Cancellation, Found, Jobs, OnProgress, When
from oxcart.model import payload
from oxcart.model.duration import Duration, parse_ms
from oxcart.model.errors import JobLocked, JobNotFound, WrongState
from oxcart.model.failure_groups import FailureGroup, Failures
from oxcart.model.job import Job
from oxcart.model.options import DEFAULT_OPTIONS
from oxcart.model.state import State
from oxcart.model.steps import check_step_name

if TYPE_CHECKING:
    from oxcart.http.remote import RemoteQueue

#: The state on the wire of each formal state.
WIRE = {
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
#: Groups of failures that are read.
MOST_FAILURES = 100


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

    async def promote(self) -> None:
        """Makes a delayed job ready now.

        Raises:
            JobNotFound: There is no such job.
            WrongState: It is not delayed.
        """
        await RemoteJobs(self.queue)._job("POST", self.id, "/promote")

    async def update(
        self,
        *,
        tags: Mapping[str, str] | UnsetType | None = UNSET,
        correlation_id: str | UnsetType | None = UNSET,
        callback_url: str | UnsetType | None = UNSET,
        priority: int | str | UnsetType = UNSET,
    ) -> None:
        """Changes metadata of a job that has not ended; see `JobHandle.update`.

        Raises:
            JobNotFound: There is no such job.
            WrongState: It has ended.
        """
        given = {
            "tags": tags,
            "correlation_id": correlation_id,
            "callback_url": callback_url,
            "priority": priority,
        }
        body = {field: value for field, value in given.items() if value is not UNSET}
        await RemoteJobs(self.queue)._job("PATCH", self.id, "", body)


class _FailureRow(msgspec.Struct):
    reason: str
    frame: str | None
    count: int
    example: str
    ids: list[str]
    types: dict[str, int]
    states: dict[str, int]
    first_at: str
    last_at: str


class _Failures(msgspec.Struct):
    groups: list[_FailureRow]
    failed: int
    exact: bool


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
        return "unknown" if job is None or job.state is None else WIRE[job.state]

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
        count: bool = False,
    ) -> Found:
        """Returns the newest jobs that match, and at least how many match; see `Jobs.search`.

        The API chooses how many jobs it reads, and whether it counts beyond the page.

        Raises:
            NotSupported: ``first``, ``oldest`` or ``wire`` are set: the API's pages continue by a cursor.
        """
        if first or oldest or wire:
            raise unsupported("search", "first, oldest and wire of a search", "use oxcart.http.Client.list")
        given = {
            "state": texts(state),
            "type": texts(name),
            "reason": reason,
            "worker": texts(worker),
            "category": texts(category),
            "tag": [f"{key}={value}" for key, value in (tags or {}).items()],
            "correlation_id": correlation_id,
            "priority": [priority] if isinstance(priority, int) else list(priority or ()),
            "since": when(since),
            "until": when(until),
            "limit": limit,
            "queue": self._queue.name,
        }
        params = {field: value for field, value in given.items() if value not in (None, [])}
        page = await self._remote.client.call("GET", "/jobs", Page, params=params)
        jobs = [job_of(body) for body in page.jobs]
        return Found(
            jobs=jobs,
            wire_states=[WIRE[job.state or State.PENDING] for job in jobs],
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

    async def signal(self, job_id: str, signal: str, data: Any = None) -> bool:
        """Sends a signal to a job; returns whether the job waited for it. See `Jobs.signal`.

        Raises:
            JobNotFound: There is no such job.
            WrongState: It has ended.
        """
        check_step_name(signal, "signal")
        body = {"signal": signal, "data": msgspec.Raw(payload.encode(data, field="signal data"))}
        answer = await self._job("POST", job_id, "/signal", body)
        return bool(msgspec.json.decode(answer.content)["woken"])

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
        scan: int = 0,
    ) -> Failures:
        """Groups failed jobs by their cause, most frequent first; at most 100 groups.

        Raises:
            NotSupported: A filter other than ``since`` is set.
        """
        if [*texts(state)] != ["failed", "dead_letter"] or any((name, reason, worker, category, tags, until)):
            raise unsupported("failures", "filters of failures other than since", "use search")
        path = f"{self._remote.path}/failures"
        params = {"limit": MOST_FAILURES} | chosen(since=when(since))
        answer = await self._remote.client.send("GET", path, params=params)
        body = msgspec.json.decode(answer.content, type=_Failures)
        groups = [
            FailureGroup(
                reason=one.reason,
                frame=one.frame,
                count=one.count,
                first_ms=parse_time_ms(one.first_at, "first_at"),
                last_ms=parse_time_ms(one.last_at, "last_at"),
                example=one.example,
                ids=one.ids,
                names=one.types,
                states=one.states,
            )
            for one in body.groups
        ]
        return Failures(groups, body.failed, body.exact, body.failed, body.failed)

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
        body = chosen(
            state=texts(state),
            type=texts(name),
            tags=dict(tags or {}),
            correlation_id=correlation_id,
            older_than=span(older_than, "older_than"),
            newer_than=span(newer_than, "newer_than"),
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
        body = chosen(state=state, since=when(since), until=when(until), limit=limit, reset_attempts=reset)
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
        body = chosen(state=state, grace=span(grace, "grace"), limit=limit)
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


def texts(given: str | Iterable[str] | None) -> list[str]:
    """Returns one text or several as a list."""
    return [] if given is None else [given] if isinstance(given, str) else list(given)


def span(given: Duration | None, field: str) -> str | None:
    """Returns a duration as a request has it."""
    return None if given is None else f"{parse_ms(given, field)}ms"


def when(given: When | None) -> str | None:
    """Returns a time as a request has it."""
    if isinstance(given, datetime):
        return rfc3339(given)
    if isinstance(given, int):
        return rfc3339_ms(given)
    return None if given is None else given if isinstance(given, str) else f"{int(given.total_seconds())}s"


def chosen(**given: Any) -> dict[str, Any]:
    """Returns the fields that have a value."""
    return {field: value for field, value in given.items() if value not in (None, [], {}, "")}
