"""Lists what each protocol can express, and what to use instead of a feature that it lacks.

A feature that a protocol lacks is not imitated: peers that share its keys would not know of it. A broker has
a part for each optional feature that has verbs (``oxcart.broker.port.parts``). The others are options of
jobs, schedules and workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from oxcart.model.errors import NotSupported

Part = TypeVar("Part")

#: What to use instead of a verb that a queue in memory lacks.
_SERVER = "this needs a server, and a queue in memory has no server"


class Feature(NamedTuple):
    """An optional feature.

    Attributes:
        words: What it is, in the words of the error and of docs/bridge.md.
        lacking: What to use instead, by each protocol that lacks it; empty if there is no alternative.
        part: The broker's part that has its verbs; empty if it is an option or a trait.
    """

    words: str
    lacking: Mapping[str, str]
    part: str = ""


def _needs_server(words: str, part: str, **lacking: str) -> Feature:
    return Feature(words, {"memory": _SERVER, **lacking}, part)


FEATURES: Mapping[str, Feature] = {
    "after_any": Feature(
        "waiting for any one of several jobs",
        {"bridge": "use after=, which waits until all of them have completed", "memory": _SERVER},
    ),
    "after_ids": Feature(
        "after= among the options of a job",
        {
            "bullmq": "pass after= to Queue.add, or use a Graph",
            "memory": _SERVER,
            "partitioned": "pass after= to Queue.add, or use a Graph",
        },
    ),
    "bulk": _needs_server("operations on many jobs", "bulk"),
    "cancelling": _needs_server("cancelling jobs", "cancelling"),
    "change_priority": Feature(
        "changing a job's priority",
        {"bridge": "remove the job and add it again with another priority"},
        "updates",
    ),
    "custom_ids": Feature("job ids that are no UUID", {"bridge": "pass a UUID as job_id"}),
    "dead_letters": Feature("dead letters", {}, "dead_letters"),
    "deduplication": _needs_server(
        "deduplication windows",
        "deduplication",
        bridge="pass a UUID as job_id: a second add of it makes no second job",
    ),
    "error_names": Feature(
        "errors by name that end the retries or send a job elsewhere",
        {
            "bullmq": "raise PermanentError in the handler, or pass the worker a classifier",
            "partitioned": "raise PermanentError in the handler, or pass the worker a classifier",
            "memory": "raise PermanentError in the handler, or pass a classifier",
        },
    ),
    "flows": Feature(
        "flows of parents and children",
        {
            "bridge": "let the job wait for others with after=",
            "memory": "flows need a server: oxcart.testing runs single jobs in memory",
        },
        "flows",
    ),
    "graphs": Feature(
        "graphs of jobs",
        {
            "bridge": "add the jobs one by one, each with after= the jobs of the namespace that it waits for",
            "memory": "graphs need a server: oxcart.testing runs single jobs in memory",
        },
        "graphs",
    ),
    "groups": _needs_server(
        "fair groups",
        "groups",
        bridge="give each tenant a type of its own: workers rotate over the types they serve",
        partitioned="use a queue without partitions, or partition_key= for the tenant, which keeps its jobs "
        "in one partition, with limit_key= and queue.limits.set_key_limit",
    ),
    "history": Feature(
        "histories of transitions",
        {"bridge": "read queue.events(), or the pipeline's tables", "memory": "read queue.events()"},
    ),
    "idempotency": Feature(
        "idempotency keys", {"bridge": "make a UUID of the key (uuid.uuid5) and pass it as job_id"}
    ),
    "intervals": Feature(
        "schedules by interval, with a limit, or that begin at once",
        {"bridge": "use a cron expression", "memory": _SERVER},
    ),
    "keep_events": Feature(
        "another number of kept events",
        {
            "bridge": "a type keeps about 10 000 events; an attached pipeline keeps more",
            "memory": "a queue in memory keeps 10 000 events",
        },
    ),
    "lanes": _needs_server(
        "lanes that are queues of their own",
        "lanes",
        bridge="a job with a target stays in its type; queue.workers.unroutable() counts those without one",
        partitioned="use one queue for each kind of worker",
    ),
    "lifetime": Feature(
        "lifetimes", {"bridge": "cancel old jobs with queue.jobs.cancel_all(older_than=…), and set timeout="}
    ),
    "limit_keys": Feature(
        "limits per key", {"bridge": "use rate_limit=, which limits a type", "memory": _SERVER}
    ),
    "logs": Feature("job logs", {"bridge": "use the logging module: its records carry the job's id"}, "logs"),
    "minute_counts": _needs_server(
        "counts of ended jobs by the minute", "metrics", bridge="the pipeline's tables have them"
    ),
    "missed_policy": Feature(
        "policies for missed and overlapping firings of a schedule",
        {
            "bullmq": "limit the type of its jobs: queue.limits.set_type_limit(name, concurrent=1)",
            "partitioned": "make it in a queue without partitions, and limit the type of its jobs there",
            "memory": _SERVER,
        },
    ),
    "partitions": Feature(
        "partitions",
        {
            "bridge": "use several types, or a queue of the BullMQ protocol with partitions=",
            "bullmq": "make the queue with partitions=",
            "memory": _SERVER,
        },
        "partitions",
    ),
    "queue_limits": _needs_server("limits of the queue as such", "limits", bridge="use rate_limit="),
    "rescue": _needs_server("bringing back lost jobs", "rescue"),
    "resealing": Feature(
        "sealing stored values with another key",
        {
            "memory": "jobs in memory end with their process",
            "partitioned": "seal the values of each partition: it is a queue",
        },
        "sealed_values",
    ),
    "retention_by_count": Feature(
        "keeping a number of ended jobs",
        {"bridge": "ended jobs are kept for 24 h; remove_on_complete=True removes them at once"},
    ),
    "schedules": _needs_server("schedules", "schedules"),
    "stats": _needs_server(
        "statistics of a namespace",
        "namespace",
        bullmq="use queue.counts() and queue.workers.list()",
        partitioned="use queue.counts() and queue.workers.list()",
    ),
    "target": Feature("targets", {"memory": _SERVER, "partitioned": "use one queue for each kind of worker"}),
    "type_limits": Feature(
        "limits that a job carries for its type",
        {
            "bullmq": "use queue.limits.set_type_limit",
            "memory": _SERVER,
            "partitioned": "use queue.limits.set_type_limit",
        },
    ),
    "updates": Feature(
        "changing tags, correlation or callback of a job",
        {"bridge": "remove the job and add it again"},
        "updates",
    ),
    "wakes": Feature("peers that wake waiting workers and tell of ended jobs", {"bridge": ""}),
    "webhooks": Feature(
        "webhooks", {"bridge": "await job.result(), or read queue.events()", "memory": _SERVER}, "webhooks"
    ),
    "worker_limits": Feature(
        "a limiter of the worker's own",
        {
            "bridge": "use rate_limit=, or a lower concurrency",
            "partitioned": "use queue.limits.set_rate, which is divided among the partitions",
        },
    ),
}

#: Options of a job that need a feature, whatever their value.
OPTIONS = {
    "after": "after_ids",
    "callback_url": "webhooks",
    "deduplication": "deduplication",
    "group": "groups",
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


class Capabilities(NamedTuple):
    """What a protocol can express.

    Attributes:
        protocol: The protocol's name.
    """

    protocol: str

    def can(self, feature: str) -> bool:
        """Returns whether the protocol can express a feature."""
        return self.protocol not in FEATURES[feature].lacking

    def require(self, feature: str) -> None:
        """Refuses a feature that the protocol lacks.

        Raises:
            NotSupported: The protocol lacks it; the error names the alternative.
        """
        words, lacking, _ = FEATURES[feature]
        if self.protocol in lacking:
            raise NotSupported(self.protocol, feature, words, lacking[self.protocol])

    def part(self, part: Part | None, feature: str) -> Part:
        """Returns a required part of a broker: ``capabilities.part(broker.flows, "flows")``.

        Raises:
            NotSupported: It is None, because the protocol lacks the feature.
        """
        if part is None:
            self.require(feature)
            raise AssertionError(f"a broker of the protocol {self.protocol} has no part for {feature}")
        return part


BULLMQ = Capabilities("bullmq")
BRIDGE = Capabilities("bridge")
MEMORY = Capabilities("memory")
PARTITIONED = Capabilities("partitioned")
