"""The client of the HTTP API for code that blocks: the methods of `Client` without ``await``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Unpack

from oxcart.http.client import TIMEOUT, AddOptions, Changes, Client, JobEvent
from oxcart.http.values import BatchAnswer, JobBody, Page
from oxcart.model.duration import Duration
from oxcart.sync._portal import iterate, run


class SyncClient:
    """Calls an HTTP API of Oxcart, and waits for the answers. See `Client` for arguments and errors.

    Example:
        >>> with SyncClient("https://jobs.example", token="…") as jobs:          # doctest: +SKIP
        ...     job = jobs.add("welcome", {"to": "ada@example.com"})
    """

    def __init__(self, url: str, *, token: str | None = None, timeout: float = TIMEOUT) -> None:
        self._client = Client(url, token=token, timeout=timeout)

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        run(self._client.close())

    def add(self, job_type: str, payload: Any = None, **options: Unpack[AddOptions]) -> JobBody:
        """Adds a job; returns it, or the job that has the same type and idempotency key.

        Args:
            job_type: The kind of job.
            payload: Its payload, any JSON value.
            **options: As in `AddOptions`.
        """
        return run(self._client.add(job_type, payload, **options))

    def add_many(
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
        return run(self._client.add_many(jobs, atomic=atomic, trace_context=trace_context))

    def get(self, job_id: str, *, payload: bool = False) -> JobBody:
        """Returns a job as it is now.

        Args:
            job_id: The job.
            payload: Whether to read its payload as well.

        Raises:
            JobNotFound: There is no such job.
        """
        return run(self._client.get(job_id, payload=payload))

    def list(self, **filters: Any) -> Page:
        """Returns a page of jobs, latest change first.

        Args:
            **filters: The parameters of ``GET /api/v1/jobs``: state, type, queue, tag, limit, cursor, ….
        """
        return run(self._client.list(**filters))

    def cancel(self, job_id: str, reason: str = "", *, force: bool = False) -> JobBody:
        """Cancels a job; ``force`` ends a running one at once.

        Raises:
            JobNotFound: There is no such job.
            ApiRefused: It has ended (409).
        """
        return run(self._client.cancel(job_id, reason, force=force))

    def retry(self, job_id: str, *, reset: bool = False) -> JobBody:
        """Lets a job run again that failed or is a dead letter; ``reset`` resets its attempts.

        Raises:
            JobNotFound: There is no such job.
            ApiRefused: It is in another state (409).
        """
        return run(self._client.retry(job_id, reset=reset))

    def promote(self, job_id: str) -> JobBody:
        """Makes a delayed job ready now.

        Raises:
            JobNotFound: There is no such job.
            ApiRefused: It is not delayed (409).
        """
        return run(self._client.promote(job_id))

    def update(self, job_id: str, **changes: Unpack[Changes]) -> JobBody:
        """Changes metadata of a job that has not ended; None removes.

        Args:
            job_id: The job.
            **changes: As in `Changes`.

        Raises:
            JobNotFound: There is no such job.
            ApiRefused: It has ended (409).
        """
        return run(self._client.update(job_id, **changes))

    def signal(self, job_id: str, signal: str, data: Any = None) -> bool:
        """Sends a signal to a job; returns whether the job waited for it.

        Raises:
            JobNotFound: There is no such job.
            ApiRefused: It has ended (409).
        """
        return run(self._client.signal(job_id, signal, data))

    def remove(self, job_id: str) -> None:
        """Removes a job that no worker runs.

        Raises:
            JobNotFound: There is no such job.
            ApiRefused: A worker runs it (409).
        """
        run(self._client.remove(job_id))

    def result(self, job_id: str, timeout: Duration = 30, *, queue: str | None = None) -> Any:
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
        return run(self._client.result(job_id, timeout, queue=queue))

    def events(self, *, job_id: str | None = None, since: str | None = None) -> Iterator[JobEvent]:
        """Yields events until the server ends the stream.

        Args:
            job_id: Only events of this job.
            since: The id of the last event already seen; None for only new ones.
        """
        return iterate(run, self._client.events(job_id=job_id, since=since), self)
