"""The metrics of Bridge namespaces: the specification's monitoring list, in Prometheus' form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from oxcart.broker.port.results import NamespaceStats


def collect(namespaces: Mapping[str, NamespaceStats]) -> Iterator[Metric]:
    """Yields every metric of namespaces, by their names."""
    if not namespaces:
        return
    jobs = GaugeMetricFamily(
        "bridge_jobs",
        "Jobs of the namespace by where they are: take the max, not the sum.",
        labels=["namespace", "state"],
    )
    workers = GaugeMetricFamily(
        "bridge_workers",
        "Registered workers, by whether they were heard of within 30 s.",
        labels=["namespace", "alive"],
    )
    running = GaugeMetricFamily(
        "bridge_concurrent", "Jobs counted as running, by type.", labels=["namespace", "type"]
    )
    ended = CounterMetricFamily("bridge_jobs_ended", "Jobs that have ended.", labels=["namespace", "how"])
    for name, seen in namespaces.items():
        for state in ("waiting", "active", "delayed", "cron", "dead"):
            jobs.add_metric([name, state], getattr(seen, state))
        alive = sum(seen.workers.values())
        workers.add_metric([name, "yes"], alive)
        workers.add_metric([name, "no"], len(seen.workers) - alive)
        for job_type, count in seen.concurrent.items():
            running.add_metric([name, job_type], count)
        ended.add_metric([name, "processed"], seen.processed)
        ended.add_metric([name, "failed"], seen.failed)
    yield from (jobs, workers, running, ended)
