"""Oxcart: a distributed job system for Python that shares its queues with BullMQ.

The names of the first week are here. Errors are in ``oxcart.errors``; `KeyRing` is in ``oxcart.encryption``,
`QueueEvents` in ``oxcart.events``, `Webhooks` in ``oxcart.webhooks``, and the queue without ``await`` in
``oxcart.sync``. Each name loads its module when first used, so that a process pays only for what it uses.
"""

from importlib import import_module as _import
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oxcart.engine.injection import Depends
    from oxcart.engine.running import RunningJob, current_job
    from oxcart.engine.sync_running import SyncRunningJob
    from oxcart.engine.worker import Worker
    from oxcart.flow import Flow
    from oxcart.graph import Graph
    from oxcart.handle import JobHandle
    from oxcart.model import (
        Abilities,
        Backoff,
        Cancel,
        Event,
        Job,
        JobOptions,
        PermanentError,
        RateLimited,
        Retry,
        Snooze,
        Target,
        TemporaryError,
        WaitForChildren,
    )
    from oxcart.queue import Queue

    __version__: str

_PLACES = {
    "Depends": "oxcart.engine.injection",
    "Flow": "oxcart.flow",
    "Graph": "oxcart.graph",
    "JobHandle": "oxcart.handle",
    "Queue": "oxcart.queue",
    "RunningJob": "oxcart.engine.running",
    "SyncRunningJob": "oxcart.engine.sync_running",
    "Worker": "oxcart.engine.worker",
    "current_job": "oxcart.engine.running",
}

__all__ = [
    "Abilities",
    "Backoff",
    "Cancel",
    "Depends",
    "Event",
    "Flow",
    "Graph",
    "Job",
    "JobHandle",
    "JobOptions",
    "PermanentError",
    "Queue",
    "RateLimited",
    "Retry",
    "RunningJob",
    "Snooze",
    "SyncRunningJob",
    "Target",
    "TemporaryError",
    "WaitForChildren",
    "Worker",
    "current_job",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("oxcart")
    elif name in __all__:
        value = getattr(_import(_PLACES.get(name, "oxcart.model")), name)
    else:
        raise AttributeError(f"module 'oxcart' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
