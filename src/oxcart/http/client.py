"""A typed client of the HTTP API, for services without access to Redis.

    async with Client("https://jobs.example", token="…") as jobs:
        job = await jobs.add("welcome", {"to": "ada@example.com"}, delay="5m")
        print(await jobs.result(job.id, timeout="30s"))

Calls are never repeated by themselves: an add with an ``idempotency_key`` is safe to repeat.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Any, TypedDict, TypeVar, Unpack
from urllib.parse import quote

import httpx
import msgspec

from oxcart.http.refused import ApiRefused
from oxcart.http.times import parse_go_ms
from oxcart.http.values import BatchAnswer, JobBody, Page, Result, Waited
from oxcart.model import payload
from oxcart.model.duration import Duration
from oxcart.model.errors import (
    BrokerUnavailable,
    JobFailed,
    JobNotFound,
    OutcomeUnknown,
    ResultTimeout,
)

T = TypeVar("T")

#: Seconds that a call may take beyond the time that it waits on purpose.
TIMEOUT = 30.0
#: The longest single wait that the API takes, in milliseconds; longer ones are several calls.
LONGEST_WAIT_MS = 60_000


class AddOptions(TypedDict, total=False):
    """The options of a job, as ``POST /api/v1/jobs`` takes them.

    ``trace_context`` is the W3C carrier that the job continues, which `Client.add` sends as headers.
    """

    priority: int | str
    delay: str | int | float
    scheduled_at: str
    timeout: str | int | float
    max_attempts: int
    group: str
    idempotency_key: str
    correlation_id: str
    tags: Mapping[str, str]
    backoff: Mapping[str, Any]
    depends_on: Iterable[str]
    dependency_type: str
    callback_url: str
    lifetime: str | int | float
    queue: str
    target: str
    id: str
    limit_key: str
    lifo: bool
    partition_key: str
    trace_context: Mapping[str, str]


class Changes(TypedDict, total=False):
    """The metadata of a job, as ``PATCH /api/v1/jobs/{job_id}`` takes it."""

    tags: Mapping[str, str] | None
    correlation_id: str | None
    callback_url: str | None
    priority: int | str


class JobEvent(msgspec.Struct, frozen=True):
    """One event of the stream.

    Attributes:
        id: Its position; pass it as ``since`` to continue after it.
        name: ``job.created``, ``job.started`` and so on.
        job_id: The job.
        job: The job as it was when the event was read; None if it was deleted.
    """

    id: str
    name: str
    job_id: str
    job: JobBody | None


class Client:
    """Calls an HTTP API of Oxcart.

    Args:
        url: Where the API is, for example ``http://127.0.0.1:8080``.
        token: The token to send, if the API needs one.
        timeout: Seconds that a call may take.
        http: An httpx client to use instead of one of its own; it stays open.

    Raises:
        ApiRefused: From every call: the API refused it.
        BrokerUnavailable: From every call: the API, or its store, cannot be reached.
        OutcomeUnknown: From calls that change something: no answer came, so they may have been applied.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: float = TIMEOUT,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._url = url.rstrip("/")
        self._timeout = timeout
        self._owned = http is None
        self._http = httpx.AsyncClient(timeout=timeout) if http is None else http

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        if self._owned:
            await self._http.aclose()

    async def add(self, job_type: str, payload: Any = None, **options: Unpack[AddOptions]) -> JobBody:
        """Adds a job; returns it, or the job that has the same type and idempotency key.

        Args:
            job_type: The kind of job.
            payload: Its payload, any JSON value.
            **options: As in `AddOptions`.
        """
        trace = options.pop("trace_context", None)
        row = _row(job_type, payload, options)
        return await self.call("POST", "/jobs", JobBody, row, headers=trace)

    async def add_many(
        self,
        jobs: Iterable[tuple[str, Any] | tuple[str, Any, AddOptions]],
        *,
        atomic: bool = True,
        trace_context: Mapping[str, str] | None = None,
    ) -> BatchAnswer:
        """Adds 1 to 1000 jobs.

        Args:
            jobs: ``(type, payload)`` or ``(type, payload, options)`` per job.
            atomic: Whether one wrong job refuses all. Otherwise ``results`` has the error of each.
            trace_context: The W3C carrier that all of them continue.
        """
        rows = [_row(row[0], row[1], row[2] if len(row) > 2 else {}) for row in jobs]
        body = {"jobs": rows, "atomic": atomic}
        return await self.call("POST", "/jobs/batch", BatchAnswer, body, headers=trace_context)

    async def get(self, job_id: str, *, payload: bool = False) -> JobBody:
        """Returns a job as it is now.

        Args:
            job_id: The job.
            payload: Whether to read its payload as well.

        Raises:
            JobNotFound: There is no such job.
        """
        params = {"payload": "true"} if payload else {}
        return await self.call("GET", _path(job_id), JobBody, params=params, job_id=job_id)

    async def list(self, **filters: Any) -> Page:
        """Returns a page of jobs, latest change first.

        Args:
            **filters: The parameters of ``GET /api/v1/jobs``: state, type, queue, tag, limit, cursor, ….
        """
        return await self.call("GET", "/jobs", Page, params=filters)

    async def cancel(self, job_id: str, reason: str = "", *, force: bool = False) -> JobBody:
        """Cancels a job; ``force`` ends a running one at once.

        Raises:
            JobNotFound: There is no such job.
            ApiRefused: It has ended (409).
        """
        body = {"reason": reason, "force": force}
        return await self.call("POST", _path(job_id, "/cancel"), JobBody, body, job_id=job_id)

    async def retry(self, job_id: str, *, reset: bool = False) -> JobBody:
        """Lets a job run again that failed or is a dead letter; ``reset`` resets its attempts.

        Raises:
            JobNotFound: There is no such job.
            ApiRefused: It is in another state (409).
        """
        body = {"reset_attempts": reset}
        return await self.call("POST", _path(job_id, "/retry"), JobBody, body, job_id=job_id)

    async def promote(self, job_id: str) -> JobBody:
        """Makes a delayed job ready now.

        Raises:
            JobNotFound: There is no such job.
            ApiRefused: It is not delayed (409).
        """
        return await self.call("POST", _path(job_id, "/promote"), JobBody, job_id=job_id)

    async def update(self, job_id: str, **changes: Unpack[Changes]) -> JobBody:
        """Changes metadata of a job that has not ended; None removes.

        Args:
            job_id: The job.
            **changes: As in `Changes`.

        Raises:
            JobNotFound: There is no such job.
            ApiRefused: It has ended (409).
        """
        return await self.call("PATCH", _path(job_id), JobBody, changes, job_id=job_id)

    async def signal(self, job_id: str, signal: str, data: Any = None) -> bool:
        """Sends a signal to a job; returns whether the job waited for it.

        Raises:
            JobNotFound: There is no such job.
            ApiRefused: It has ended (409).
        """
        body = {"signal": signal, "data": data}
        found = await self.call("POST", _path(job_id, "/signal"), dict[str, bool], body, job_id=job_id)
        return found["woken"]

    async def remove(self, job_id: str) -> None:
        """Removes a job that no worker runs.

        Raises:
            JobNotFound: There is no such job.
            ApiRefused: A worker runs it (409).
        """
        await self.send("DELETE", _path(job_id), job_id=job_id)

    async def result(self, job_id: str, timeout: Duration = 30, *, queue: str | None = None) -> Any:
        """Waits for the result of a job.

        Args:
            job_id: The job.
            timeout: How long to wait; more than a minute is several calls.
            queue: Its queue, if the id does not lead to it.

        Raises:
            JobFailed: It failed for good.
            JobNotFound: There is no such job.
            ResultTimeout: It has not ended in time.
        """
        left = parse_go_ms(timeout, "timeout")
        while True:
            part = min(left, LONGEST_WAIT_MS)
            waited = await self.call(
                "POST",
                _path(job_id, "/wait"),
                Waited,
                {"timeout": f"{part}ms"},
                params={} if queue is None else {"queue": queue},
                job_id=job_id,
                extra=part / 1000,
            )
            left -= part
            if not waited.timed_out:
                return _value(job_id, waited.result)
            if left <= 0:
                raise ResultTimeout(f"job {job_id} has not ended within {timeout}")

    async def events(self, *, job_id: str | None = None, since: str | None = None) -> AsyncIterator[JobEvent]:
        """Yields events until the server ends the stream.

        Args:
            job_id: Only events of this job.
            since: The id of the last event already seen; None for only new ones.
        """
        params = {} if job_id is None else {"job_id": job_id}
        headers = self._headers if since is None else {**self._headers, "Last-Event-ID": since}
        limits = httpx.Timeout(self._timeout, read=90)  # a silent stream sends a comment every 30 s
        try:
            async with self._http.stream(
                "GET", f"{self._url}/api/v1/events", params=params, headers=headers, timeout=limits
            ) as answer:
                if answer.status_code != httpx.codes.OK:
                    await answer.aread()
                    raise _refusal(answer, None)
                async for event in _events(answer.aiter_lines()):
                    yield event
        except httpx.TransportError as error:
            raise BrokerUnavailable(f"the event stream of {self._url} broke off: {error}") from error

    async def call(
        self,
        method: str,
        path: str,
        kind: type[T],
        body: Any = None,
        *,
        params: Mapping[str, Any] | None = None,
        job_id: str | None = None,
        extra: float = 0.0,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """Sends a request to a path below ``/api/v1``, and decodes the answer; see `send`."""
        answer = await self.send(
            method, path, body, params=params, job_id=job_id, extra=extra, headers=headers
        )
        return msgspec.json.decode(answer.content, type=kind)

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        params: Mapping[str, Any] | None = None,
        job_id: str | None = None,
        extra: float = 0.0,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Sends a request to a path below ``/api/v1``, for routes without a method here.

        Args:
            method: The HTTP method.
            path: The path, for example ``/queues/emails/pause``.
            body: The body, any JSON value.
            params: Parameters of the query.
            job_id: The job of the path: a 404 raises `JobNotFound` then.
            extra: Seconds that the answer may take longer, on purpose.
            headers: Further headers.
        """
        content = None if body is None else msgspec.json.encode(body)
        sent = {**(headers or {}), **self._headers, "Content-Type": "application/json"}
        try:
            answer = await self._http.request(
                method,
                f"{self._url}/api/v1{path}",
                content=content,
                params=dict(params or {}),
                headers=sent,
                timeout=self._timeout + extra,
            )
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise BrokerUnavailable(f"{self._url} cannot be reached: {error}") from error
        except httpx.TransportError as error:
            if method == "GET":
                raise BrokerUnavailable(f"{self._url} did not answer: {error}") from error
            raise OutcomeUnknown(f"{self._url} did not answer: {error or type(error).__name__}") from error
        if answer.is_success:
            return answer
        raise _refusal(answer, job_id)


def _row(job_type: str, payload: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"type": job_type, "payload": payload, **options}
    if "depends_on" in row:
        row["depends_on"] = list(row["depends_on"])
    return row


def _path(job_id: str, rest: str = "") -> str:
    return f"/jobs/{quote(job_id, safe='')}{rest}"


def _refusal(answer: httpx.Response, job_id: str | None) -> Exception:
    try:
        found = msgspec.json.decode(answer.content)["error"]
        code, message = str(found["code"]), str(found["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        code, message, found = "unknown", answer.text[:200] or answer.reason_phrase, {}
    if code == "not_found" and job_id is not None:
        return JobNotFound(job_id)
    if code == "unavailable":
        if ids := found.get("job_ids"):
            return OutcomeUnknown(message).of_jobs(ids)
        return BrokerUnavailable(message)
    return ApiRefused(
        answer.status_code, code, message, found.get("details"), str(found.get("request_id", ""))
    )


def _value(job_id: str, result: Result | None) -> Any:
    if result is None:
        raise JobNotFound(job_id)
    if not result.success:
        raise JobFailed(job_id, result.error or "", None, result.error_category)
    return None if result.output is None else payload.decode(base64.b64decode(result.output))


async def _events(lines: AsyncIterator[str]) -> AsyncIterator[JobEvent]:
    fields: dict[str, str] = {}
    async for line in lines:
        name, separator, value = line.partition(": ")
        if line and separator and name:
            fields[name] = value
        elif not line and "data" in fields:
            if fields.get("event") != "connected":
                yield _event(fields)
            fields = {}


def _event(fields: Mapping[str, str]) -> JobEvent:
    name, position = fields.get("event", ""), fields.get("id", "")
    if name == "job.deleted":
        return JobEvent(position, name, msgspec.json.decode(fields["data"])["id"], None)
    job = msgspec.json.decode(fields["data"], type=JobBody)
    return JobEvent(position, name, job.id, job)
