"""The metrics of what shares a queue: fair groups, and partitions. Their labels are bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric

from oxcart.broker.port.results import GroupSummary

_OF_GROUPS: tuple[tuple[str, str, Callable[[GroupSummary], float]], ...] = (
    (
        "bullmq_groups_waiting",
        "Groups with waiting jobs; above 100 those that take turns, the same from every process.",
        lambda one: one.groups,
    ),
    (
        "bullmq_group_jobs_waiting",
        "Jobs that wait for their group's turn, the same from every process: take the max.",
        lambda one: one.waiting,
    ),
    (
        "bullmq_group_largest_jobs_waiting",
        "Waiting jobs of the largest group, the same from every process: take the max.",
        lambda one: max(one.largest.values(), default=0),
    ),
    (
        "bullmq_group_oldest_waiting_seconds",
        "For how long the next job of a group has waited, the longest of the groups looked at.",
        lambda one: one.oldest_ms / 1000,
    ),
)


def of_groups(queues: Mapping[str, GroupSummary]) -> Iterator[Metric]:
    """Yields the numbers of waiting groups. No group has a series of its own: there may be 100 000."""
    for name, text, of in _OF_GROUPS:
        gauge = GaugeMetricFamily(name, text, labels=["queue"])
        for queue, summary in queues.items():
            gauge.add_metric([queue], of(summary))
        yield gauge


def of_partitions(queues: Mapping[str, Mapping[int, Mapping[str, int]]]) -> Metric:
    """Returns the jobs of each partition by state; queues of more than 64 partitions have only their sums."""
    gauge = GaugeMetricFamily(
        "bullmq_partition_length",
        "Jobs of a partition by state, the same from every process: take the max, not the sum.",
        labels=["queue", "partition", "state"],
    )
    for queue, partitions in queues.items():
        for number, counts in partitions.items():
            for state, count in counts.items():
                gauge.add_metric([queue, str(number), state], count)
    return gauge
