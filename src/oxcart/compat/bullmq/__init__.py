"""The public API of PyPI's ``bullmq`` 3.4.4 on Oxcart's engine: change one import line and keep the rest.

    from oxcart.compat.bullmq import Queue, Worker    # was: from bullmq import Queue, Worker

Names, dict options, events, errors and the retry rule are that package's. So is the stored data: peers that
share the queues, Node included, notice no difference. ``docs/migrating-from-bullmq.md`` lists the
differences. It also has features of Node that PyPI's package lacks: jitter, ``waitUntilFinished``,
``getDependencies``, ``changeDelay``, ``RateLimitError`` and others.
"""

from oxcart.compat.bullmq.abort_controller import AbortController, AbortError, AbortSignal
from oxcart.compat.bullmq.custom_errors import (
    DelayedError,
    RateLimitError,
    UnrecoverableError,
    WaitingChildrenError,
    WaitingError,
)
from oxcart.compat.bullmq.flow_producer import FlowProducer
from oxcart.compat.bullmq.job import Job
from oxcart.compat.bullmq.job_scheduler import JobScheduler
from oxcart.compat.bullmq.lock_manager import LockManager
from oxcart.compat.bullmq.queue import Queue
from oxcart.compat.bullmq.queue_events import QueueEvents
from oxcart.compat.bullmq.queue_events_producer import QueueEventsProducer
from oxcart.compat.bullmq.worker import Worker

#: The version whose API this is.
__version__ = "3.4.4"

__all__ = [
    "AbortController",
    "AbortError",
    "AbortSignal",
    "DelayedError",
    "FlowProducer",
    "Job",
    "JobScheduler",
    "LockManager",
    "Queue",
    "QueueEvents",
    "QueueEventsProducer",
    "RateLimitError",
    "UnrecoverableError",
    "WaitingChildrenError",
    "WaitingError",
    "Worker",
]
