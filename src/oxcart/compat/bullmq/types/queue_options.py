"""The types of the options of a queue or a flow producer, for annotations."""

from __future__ import annotations

from typing import TypedDict

from oxcart.compat.bullmq.types.connection_options import ConnectionOptions
from oxcart.compat.bullmq.types.job_options import JobOptions


class QueueBaseOptions(TypedDict, total=False):
    """Options of a queue or a flow producer."""

    connection: ConnectionOptions
    defaultJobOptions: JobOptions
    prefix: str
    skipVersionCheck: bool
    skipWaitingForReady: bool
