"""What each protocol can express: one table, asked before anything is written.

A feature that a protocol has no place for is not imitated on the side: peers that share its keys would not
know of it. Asking for it raises ``NotSupported``.

May touch: nothing; values.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from oxcart.model.errors import NotSupported

#: What each feature is, in the words of the error and of docs/bridge.md.
WORDS = {
    "change_priority": "changing a job's priority",
    "custom_ids": "job ids that are no UUID",
    "deduplication": "deduplication windows",
    "depends_on": "waiting for other jobs by their ids",
    "error_names": "errors by name that end the retries or send a job elsewhere",
    "flows": "flows of parents and children",
    "graphs": "graphs of jobs; depends_on names jobs of the same namespace",
    "history": "histories of transitions",
    "idempotency": "idempotency keys",
    "intervals": "schedules by interval, with a limit, or that begin at once",
    "lanes": "lanes that are queues of their own; a job with a target is one of its type",
    "lifetime": "lifetimes",
    "limit_keys": "limits per key",
    "logs": "job logs",
    "minute_counts": "counts of ended jobs by the minute; the pipeline's tables have them",
    "missed_policy": "policies for missed and overlapping firings of a schedule",
    "queue_limits": "limits of the queue as such; give jobs a rate_limit",
    "retention_by_count": "keeping a number of ended jobs",
    "stats": "statistics of a namespace; a queue has counts",
    "target": "targets",
    "type_limits": "limits that a job carries for its type",
    "updates": "changing tags, correlation or callback of a job",
    "wakes": "peers that wake waiting workers and tell of ended jobs",
    "webhooks": "webhooks",
    "worker_limits": "a limiter of the worker's own",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a protocol can express; each attribute is a feature described in ``WORDS``."""

    protocol: str
    change_priority: bool
    custom_ids: bool
    deduplication: bool
    depends_on: bool
    error_names: bool
    flows: bool
    graphs: bool
    history: bool
    idempotency: bool
    intervals: bool
    lanes: bool
    lifetime: bool
    limit_keys: bool
    logs: bool
    minute_counts: bool
    missed_policy: bool
    queue_limits: bool
    retention_by_count: bool
    stats: bool
    target: bool
    type_limits: bool
    updates: bool
    wakes: bool
    webhooks: bool
    worker_limits: bool

    def can(self, feature: str) -> bool:
        """Whether the protocol can express a feature."""
        return bool(getattr(self, feature))

    def require(self, feature: str) -> None:
        """Refuses a feature that the protocol cannot express.

        Raises:
            NotSupported: It cannot.
        """
        if not self.can(feature):
            raise NotSupported(self.protocol, feature, WORDS[feature])


BULLMQ = Capabilities(
    protocol="bullmq",
    change_priority=True,
    custom_ids=True,
    deduplication=True,
    depends_on=False,  # graphs do it, over queues and in both directions
    error_names=False,
    flows=True,
    graphs=True,
    history=True,
    idempotency=True,
    intervals=True,
    lanes=True,
    lifetime=True,
    limit_keys=True,
    logs=True,
    minute_counts=True,
    missed_policy=False,
    queue_limits=True,
    retention_by_count=True,
    stats=False,
    target=True,
    type_limits=False,
    updates=True,
    wakes=True,
    webhooks=True,
    worker_limits=True,
)

BRIDGE = Capabilities(
    protocol="bridge",
    change_priority=False,
    custom_ids=False,
    deduplication=False,
    depends_on=True,
    error_names=True,
    flows=False,
    graphs=False,
    history=False,
    idempotency=False,
    intervals=False,
    lanes=False,
    lifetime=False,
    limit_keys=False,
    logs=False,
    minute_counts=False,
    missed_policy=True,
    queue_limits=False,
    retention_by_count=False,
    stats=True,
    target=True,
    type_limits=True,
    updates=False,
    wakes=False,
    webhooks=False,
    worker_limits=False,
)

#: Options of a job that need a feature, whatever their value.
OPTIONS = {
    "callback_url": "webhooks",
    "deduplication": "deduplication",
    "depends_on": "depends_on",
    "history": "history",
    "idempotency_key": "idempotency",
    "idempotency_window": "idempotency",
    "keep_logs": "logs",
    "lifetime": "lifetime",
    "limit_key": "limit_keys",
    "rate_limit": "type_limits",
    "reroute_on": "error_names",
    "skip_on": "error_names",
}

#: Every feature, by name.
FEATURES = tuple(field.name for field in fields(Capabilities) if field.name != "protocol")
