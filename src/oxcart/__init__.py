"""Oxcart: a distributed job system for Python that shares its queues with BullMQ."""

from importlib.metadata import version as _version

from oxcart.engine.running import RunningJob, current_job
from oxcart.engine.worker import Worker
from oxcart.events import QueueEvents
from oxcart.handle import JobHandle
from oxcart.model import (
    Backoff,
    Cancel,
    Event,
    Job,
    JobOptions,
    OxcartError,
    PermanentError,
    Retry,
    Snooze,
    TemporaryError,
)
from oxcart.queue import Queue

__version__ = _version("oxcart")

__all__ = [
    "Backoff",
    "Cancel",
    "Event",
    "Job",
    "JobHandle",
    "JobOptions",
    "OxcartError",
    "PermanentError",
    "Queue",
    "QueueEvents",
    "Retry",
    "RunningJob",
    "Snooze",
    "TemporaryError",
    "Worker",
    "current_job",
]
