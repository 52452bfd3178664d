"""Builds Prometheus' families from our tallies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import HistogramMetricFamily

from oxcart.observe._tally import Tally


def histogram(
    name: str, text: str, labels: Sequence[str], tallies: Iterable[tuple[list[str], Tally]]
) -> HistogramMetricFamily:
    """Returns a histogram of tallies, each with its label values."""
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, tally in tallies:
        family.add_metric(values, buckets=tally.buckets(), sum_value=tally.sum)
    return family
