"""The metrics of attempts by job name, retries, dead letters and webhooks, in Prometheus' form."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from oxcart.engine.webhooks.queue import SUFFIX
from oxcart.observe._tally import Tally
from oxcart.observe.families import histogram
from oxcart.observe.numbers import QueueNumbers

#: How the status of an attempt reads if the attempt sends a webhook.
_DELIVERIES = {"completed": "delivered", "retried": "retried", "failed": "failed"}


def collect(queues: Collection[tuple[str, QueueNumbers]]) -> Iterator[Metric]:
    """Yields the metrics of queues that have a label for the job's name, and those that follow from ends."""
    jobs = [(queue, name, of_name) for queue, numbers in queues for name, of_name in numbers.jobs.items()]
    processed = CounterMetricFamily(
        "bullmq_jobs_processed",
        "Attempts that ended, by how: completed, failed, retried, snoozed, given_back, refused.",
        labels=["queue", "name", "status"],
    )
    dead = CounterMetricFamily(
        "bullmq_dead_letters",
        "Jobs that used up their attempts or their lifetime, or could not be decoded, in this process.",
        labels=["queue", "name"],
    )
    for queue, name, of_name in jobs:
        for status, count in of_name.statuses.items():
            processed.add_metric([queue, name, status], count)
        dead.add_metric([queue, name], of_name.dead)
    yield from (processed, dead)
    durations: list[tuple[list[str], Tally]] = [([queue, name], one.duration) for queue, name, one in jobs]
    yield histogram("bullmq_job_duration_seconds", "How long attempts took.", ["queue", "name"], durations)
    waits: list[tuple[list[str], Tally]] = [([queue, name], one.wait) for queue, name, one in jobs]
    yield histogram(
        "bullmq_job_wait_seconds",
        "How long jobs waited from the moment they were ready until they started, for every attempt.",
        ["queue", "name"],
        waits,
    )
    retries = CounterMetricFamily(
        "bullmq_retries", "Failed attempts that are retried, by category.", labels=["queue", "category"]
    )
    deliveries = CounterMetricFamily(
        "bullmq_webhook_deliveries",
        "Attempts to deliver a webhook, by how they ended: delivered, retried, failed.",
        labels=["queue", "status"],
    )
    for queue, numbers in queues:
        for category, count in numbers.retries.items():
            retries.add_metric([queue, category], count)
        if queue.endswith(SUFFIX):
            for status, shown in _DELIVERIES.items():
                total = sum(one.statuses.get(status, 0) for one in numbers.jobs.values())
                deliveries.add_metric([queue.removesuffix(SUFFIX), shown], total)
    yield from (retries, deliveries)
