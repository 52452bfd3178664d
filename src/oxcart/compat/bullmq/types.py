"""The dicts that options are, for those who annotate them.

May touch: nothing.
"""

from __future__ import annotations

from typing import Any, TypedDict

#: A URL, what redis-py's constructor takes, or a client of redis-py (standalone, Sentinel or cluster).
ConnectionOptions = dict[str, Any] | str | Any


class BackoffOptions(TypedDict, total=False):
    """How long to wait between attempts; ``jitter`` is Node's, from 0 to 1."""

    type: str
    delay: int
    jitter: float


class KeepJobs(TypedDict, total=False):
    """What is kept of ended jobs: for so many seconds, so many of them."""

    age: int
    count: int
    limit: int


class DeduplicationOptions(TypedDict, total=False):
    """Which window a job belongs to, and what happens to those that it keeps out."""

    id: str
    ttl: int
    extend: bool
    replace: bool
    keepLastIfActive: bool


class JobOptions(TypedDict, total=False):
    """How a job is run and kept; times are in ms."""

    attempts: int
    backoff: int | BackoffOptions
    continueParentOnFailure: bool
    deduplication: DeduplicationOptions
    delay: int
    failParentOnFailure: bool
    ignoreDependencyOnFailure: bool
    jobId: str
    keepLogs: int
    lifo: bool
    parent: dict[str, str]
    priority: int
    removeDependencyOnFailure: bool
    removeOnComplete: bool | int | KeepJobs
    removeOnFail: bool | int | KeepJobs
    sizeLimit: int
    stackTraceLimit: int
    timestamp: int


class PromoteJobsOptions(TypedDict, total=False):
    """Of ``promoteJobs``."""

    count: int


class RetryJobsOptions(TypedDict, total=False):
    """Of ``retryJobs``."""

    state: str
    count: int
    timestamp: int


class QueueBaseOptions(TypedDict, total=False):
    """Of a queue or a flow producer."""

    connection: ConnectionOptions
    defaultJobOptions: JobOptions
    prefix: str
    skipVersionCheck: bool
    skipWaitingForReady: bool


class QueueEventsOptions(TypedDict, total=False):
    """Of whoever listens to a queue."""

    autorun: bool
    blockingTimeout: int
    connection: ConnectionOptions
    lastEventId: str
    prefix: str
    skipVersionCheck: bool


class QueueEventsProducerOptions(TypedDict, total=False):
    """Of whoever publishes events of its own."""

    connection: ConnectionOptions
    prefix: str
    skipVersionCheck: bool


class WorkerOptions(TypedDict, total=False):
    """Of a worker; times are in ms."""

    autorun: bool
    concurrency: int
    connection: ConnectionOptions
    limiter: dict[str, int]
    lockDuration: int
    lockRenewTime: int
    maxStalledCount: int
    maxStartedAttempts: int
    metrics: dict[str, int]
    name: str
    prefix: str
    removeOnComplete: bool | int | KeepJobs
    removeOnFail: bool | int | KeepJobs
    settings: dict[str, Any]
    skipStalledCheck: bool
    skipVersionCheck: bool
    skipWaitingForReady: bool
    stalledInterval: int


class RepeatOptions(TypedDict, total=False):
    """When a scheduler makes jobs; times are in ms."""

    count: int
    endDate: int | float | str
    every: int
    immediately: bool
    limit: int
    offset: int
    pattern: str
    startDate: int | float | str
    tz: str


class JobSchedulerTemplateJson(TypedDict, total=False):
    """What every job of a scheduler is made from."""

    data: object
    opts: dict[str, Any]


class JobSchedulerJson(TypedDict, total=False):
    """A scheduler as it stands in a queue."""

    endDate: int | None
    every: int
    id: str | None
    iterationCount: int
    key: str
    limit: int
    name: str
    next: int | None
    offset: int
    pattern: str | None
    startDate: int
    template: JobSchedulerTemplateJson
    tz: str | None
