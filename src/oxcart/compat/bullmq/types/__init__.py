"""Types of the option dicts, for annotations."""

from oxcart.compat.bullmq.types.backoff_options import BackoffOptions
from oxcart.compat.bullmq.types.connection_options import ConnectionOptions
from oxcart.compat.bullmq.types.deduplication_options import DeduplicationOptions
from oxcart.compat.bullmq.types.job_options import JobOptions
from oxcart.compat.bullmq.types.keep_jobs import KeepJobs
from oxcart.compat.bullmq.types.promote_jobs_options import PromoteJobsOptions
from oxcart.compat.bullmq.types.queue_events_options import QueueEventsOptions, QueueEventsProducerOptions
from oxcart.compat.bullmq.types.queue_options import QueueBaseOptions
from oxcart.compat.bullmq.types.repeat_options import (
    JobSchedulerJson,
    JobSchedulerTemplateJson,
    RepeatOptions,
)
from oxcart.compat.bullmq.types.retry_jobs_options import RetryJobsOptions
from oxcart.compat.bullmq.types.worker_options import WorkerOptions

__all__ = [
    "BackoffOptions",
    "ConnectionOptions",
    "DeduplicationOptions",
    "JobOptions",
    "JobSchedulerJson",
    "JobSchedulerTemplateJson",
    "KeepJobs",
    "PromoteJobsOptions",
    "QueueBaseOptions",
    "QueueEventsOptions",
    "QueueEventsProducerOptions",
    "RepeatOptions",
    "RetryJobsOptions",
    "WorkerOptions",
]
