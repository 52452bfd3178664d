"""The type of worker options, for annotations."""

from __future__ import annotations

from typing import Any, TypedDict

from oxcart.compat.bullmq.types.connection_options import ConnectionOptions
from oxcart.compat.bullmq.types.keep_jobs import KeepJobs


class WorkerOptions(TypedDict, total=False):
    """Options of a worker; times are in ms."""

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
    stallOnForceClose: bool
    stalledInterval: int
