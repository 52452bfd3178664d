"""The bodies of requests and answers. Names and forms are those that GopherQueue's clients use."""

from __future__ import annotations

import base64
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from oxcart.http.times import rfc3339
from oxcart.model.errors import ValidationError
from oxcart.model.filter import failure_of
from oxcart.model.job import Job
from oxcart.model.state import TERMINAL, State

Time = Annotated[
    str, Meta(description="RFC 3339, in UTC, with milliseconds.", examples=["2026-11-15T12:00:00.000Z"])
]
GoDuration = Annotated[
    str | int | float,
    Meta(description="Go's form, or a number of seconds.", examples=["1h30m", "300ms", 30]),
]

#: Jobs of one batch at most.
MAX_BATCH = 1000


class Backoff(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A retry policy."""

    strategy: Annotated[str, Meta(description="constant, linear or exponential.")] = "exponential"
    initial_delay: GoDuration | None = None
    max_delay: GoDuration | None = None
    multiplier: float | None = None


class Submit(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A job to add."""

    type: Annotated[
        str, Meta(description="The kind of job; the handler of this name runs it.", examples=["welcome"])
    ]
    payload: Annotated[Any, Meta(description="Any JSON value.", examples=[{"to": "ada@example.com"}])] = None
    priority: Annotated[
        int | str | None, Meta(description="0 (critical) to 4 (bulk), or one of these names.", examples=[2])
    ] = None
    delay: GoDuration | None = None
    scheduled_at: Annotated[
        str | None,
        Meta(description="Not before this time; not with delay.", examples=["2030-01-01T08:00:00Z"]),
    ] = None
    timeout: GoDuration | None = None
    max_attempts: Annotated[int | None, Meta(examples=[5])] = None
    idempotency_key: Annotated[str | None, Meta(examples=["user-42"])] = None
    correlation_id: Annotated[str | None, Meta(examples=["order-7"])] = None
    tags: Annotated[dict[str, str] | None, Meta(examples=[{"tenant": "acme"}])] = None
    backoff: Backoff | None = None
    depends_on: list[str] | None = None
    dependency_type: Annotated[str | None, Meta(description="AFTER, AFTER_ANY or CHAIN.")] = None
    callback_url: str | None = None
    lifetime: Annotated[
        GoDuration | None,
        Meta(description="How long it may take until it has ended; 7 days after its delay."),
    ] = None
    queue: Annotated[
        str | None, Meta(description="Its queue, instead of the one that its type leads to.")
    ] = None
    target: Annotated[str | None, Meta(description="Which workers may run it, for example all;c=gpu.")] = None
    id: Annotated[
        str | None,
        Meta(description="Its id, a UUID unless given. A job of this id is returned instead of a new one."),
    ] = None
    limit_key: Annotated[str | None, Meta(description="Key whose limits apply, such as a tenant.")] = None
    group: Annotated[str | None, Meta(description="Fair group, such as a tenant; groups take turns.")] = None
    partition_key: Annotated[
        str | None, Meta(description="Jobs of one key share a partition of a partitioned queue.")
    ] = None
    lifo: Annotated[bool, Meta(description="Whether it goes before the jobs that wait.")] = False


class JobBody(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A job."""

    id: str
    type: str
    queue: str
    state: Annotated[str, Meta(description="One of the nine formal states.", examples=["scheduled"])]
    priority: int
    attempt: Annotated[int, Meta(description="The number of the latest attempt; 0 before the first.")]
    max_attempts: int
    progress: float
    progress_message: str
    tags: dict[str, str]
    created_at: Time
    updated_at: Time
    scheduled_at: Time | None = None
    started_at: Time | None = None
    completed_at: Time | None = None
    last_error: str | None = None
    error_category: str | None = None
    correlation_id: str | None = None
    worker: str | None = None
    payload: Any = None
    payload_hidden: Annotated[
        bool, Meta(description="The caller asked for the payload, and may not read it.")
    ] = False


class Page(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A page of jobs, latest change first."""

    jobs: list[JobBody]
    count: Annotated[int, Meta(description="How many jobs this page has.")]
    matched: Annotated[int, Meta(description="How many jobs match from here on, as far as they were read.")]
    exact: Annotated[bool, Meta(description="Whether all jobs were read; otherwise at least so many match.")]
    next_cursor: Annotated[str | None, Meta(description="Pass it as cursor for the next page.")] = None


class Batch(msgspec.Struct, forbid_unknown_fields=True):
    """Jobs to add together."""

    jobs: Annotated[list[Any], Meta(description="1 to 1000 jobs, each as in POST /api/v1/jobs.")]
    atomic: Annotated[bool, Meta(description="All or none.")] = False
    strict: Annotated[
        bool,
        Meta(description="One wrong job refuses all; unlike atomic, the jobs need not be added in one step."),
    ] = False


class BatchResult(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The result of one job of a batch."""

    index: int
    success: bool
    job: JobBody | None = None
    error: str | None = None


class BatchAnswer(msgspec.Struct, kw_only=True):
    """The results of a batch."""

    total: int
    accepted: int
    rejected: int
    results: list[BatchResult]


class CancelOptions(msgspec.Struct, forbid_unknown_fields=True):
    """How to cancel a job."""

    reason: str | None = None
    force: bool = False


class RetryOptions(msgspec.Struct, forbid_unknown_fields=True):
    """How to retry a job."""

    reset_attempts: bool = False


class WaitOptions(msgspec.Struct, forbid_unknown_fields=True):
    """How long to wait for a job."""

    timeout: GoDuration | None = None


class Result(msgspec.Struct, kw_only=True):
    """The result of a job that has ended."""

    job_id: str
    success: bool
    output: Annotated[str | None, Meta(description="Base64 of the result's JSON.")] = None
    output_hidden: Annotated[bool, Meta(description="The caller may not read the result.")] = False
    error: str | None = None
    error_category: str | None = None
    duration: Annotated[int, Meta(description="How long the last attempt ran, in nanoseconds.")] = 0
    completed_at: Time | None = None
    retry_after: int | None = None


class Waited(msgspec.Struct, kw_only=True):
    """The end of a wait."""

    id: str
    state: str
    completed: Annotated[bool, Meta(description="Whether the job has ended, in any state.")]
    success: bool
    result: Result | None
    timed_out: bool


def job_body(job: Job, queue: str, *, payload: bool = False) -> JobBody:
    """Returns a job as the API shows it.

    Args:
        job: The job.
        queue: The queue as the API serves it; the job itself may be in one of its lanes or partitions.
        payload: Whether to show its payload.
    """
    state = job.state or State.PENDING
    percent, message = progress_of(job.progress)
    return JobBody(
        id=job.id,
        type=job.name,
        queue=queue,
        state=state.value,
        priority=job.priority,
        attempt=job.attempts_used + (state is State.RUNNING),
        max_attempts=max(job.options.attempts, 1),
        progress=percent,
        progress_message=message,
        tags=job.tags,
        created_at=rfc3339(job.created_at),
        updated_at=rfc3339(job.updated_at),
        scheduled_at=None if job.scheduled_at is None else rfc3339(job.scheduled_at),
        started_at=None if job.started_at is None else rfc3339(job.started_at),
        completed_at=None if job.completed_at is None or state not in TERMINAL else rfc3339(job.completed_at),
        last_error=failure_of(job),
        error_category=job.category,
        correlation_id=job.correlation_id,
        worker=job.worker_id,
        payload=plain(job.data) if payload else None,
    )


def plain(value: Any) -> Any:
    """Returns a payload as JSON values: bytes in the form in which requests take them.

    Example:
        >>> plain({"raw": b"hi"})
        {'raw': {'$bytes': 'aGk='}}
    """
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def progress_of(value: Any) -> tuple[float, str]:
    """Returns a job's progress in percent, and its message.

    A handler writes a number, or an object with ``percent`` (or ``progress``) and ``message``.

    Example:
        >>> progress_of({"percent": 40, "message": "page 4 of 10"})
        (40.0, 'page 4 of 10')
    """
    message = ""
    if isinstance(value, dict):
        text = value.get("message")
        message = text if isinstance(text, str) else ""
        value = value.get("percent", value.get("progress", 0))
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 100
    return (float(value) if known else 0.0), message


def check_page_size(limit: int, most: int) -> int:
    """Returns how many rows a page may have.

    Raises:
        ValidationError: It is outside its bounds.
    """
    if not 1 <= limit <= most:
        raise ValidationError("limit", f"an integer from 1 to {most}", limit)
    return limit
