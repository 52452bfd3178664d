"""The type of job options, for annotations."""

from __future__ import annotations

from typing import TypedDict

from oxcart.compat.bullmq.types.backoff_options import BackoffOptions
from oxcart.compat.bullmq.types.deduplication_options import DeduplicationOptions
from oxcart.compat.bullmq.types.keep_jobs import KeepJobs


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
