"""The type of the options of ``retryJobs``, for annotations."""

from __future__ import annotations

from typing import TypedDict


class RetryJobsOptions(TypedDict, total=False):
    """Of ``retryJobs``."""

    state: str
    count: int
    timestamp: int
