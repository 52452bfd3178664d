"""Metrics by a meter of OpenTelemetry."""

from __future__ import annotations

import asyncio
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from oxcart import Queue, Worker
from oxcart.observe import meters
from oxcart.observe.meters import MeterHook
from oxcart.observe.tracing import Tracing
from tests.conftest import MakeQueue
from tests.signals import eventually


class Meter:
    """A provider and what it has recorded."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader])

    async def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """Attributes and values of a metric; the count of a histogram."""
        data = await asyncio.to_thread(self._reader.get_metrics_data)  # as an exporter's thread does
        found: list[tuple[dict[str, Any], Any]] = []
        for resource in data.resource_metrics if data is not None else []:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    if metric.name == name:
                        for point in metric.data.data_points:
                            count = getattr(point, "count", None)
                            value = count if count is not None else getattr(point, "value", None)
                            found.append((dict(point.attributes or {}), value))
        return found


async def test_attempts_waits_and_claims_are_recorded(queue: Queue) -> None:
    meter = Meter()

    @queue.job(attempts=2, backoff=0.01)
    async def work(fails: bool) -> None:
        if fails:
            raise OSError("away")

    await queue.add_many([("work", {"fails": fails}) for fails in (True, False, False)])
    worker = Worker(queue, observer=MeterHook(meter_provider=meter.provider))
    async with worker.running():
        await eventually(lambda: worker.processed == 4, "four attempts")
        assert await meter.points("oxcart.workers") == [({}, 1)]
    base = {
        "messaging.destination.name": "q",
        "messaging.operation.name": "process",
        "oxcart.job.name": "work",
    }
    durations = {
        facts["oxcart.job.outcome"]: (facts.get("error.type"), count)
        for facts, count in await meter.points("messaging.process.duration")
    }
    assert durations == {
        "completed": (None, 2),
        "failed": ("temporary", 1),
        "retried": ("temporary", 1),
    }
    assert await meter.points("oxcart.job.wait") == [(base, 4)]
    for name, outcome in (("oxcart.jobs.retried", "retried"), ("oxcart.jobs.dead", "failed")):
        facts = {**base, "oxcart.job.outcome": outcome, "error.type": "temporary"}
        assert await meter.points(name) == [(facts, 1)]
    ((_, claimed),) = await meter.points("messaging.client.consumed.messages")
    assert claimed == 4
    assert await meter.points("oxcart.workers") == [({}, 0)]


async def test_lengths_are_read_when_exported(queue: Queue) -> None:
    meter = Meter()
    hook = MeterHook([queue], meter_provider=meter.provider)
    await queue.add("later", delay=60)
    assert await meter.points("oxcart.queue.jobs") == [], "no worker's loop can read them yet"
    async with Worker(queue, observer=hook).running():
        found = {facts["oxcart.job.state"]: value for facts, value in await meter.points("oxcart.queue.jobs")}
    await hook.close()
    assert found["delayed"] == 1
    assert sum(found.values()) == 1


async def test_what_an_operator_watches_is_read_when_exported(queue: Queue) -> None:
    meter = Meter()
    hook = MeterHook([queue], meter_provider=meter.provider)
    await queue.groups.pause("hog")
    await queue.add_many([("n", None)] * 2, group="hog")
    await queue.add("n", target="c=gpu")
    of_queue = {"messaging.destination.name": "q"}
    async with Worker(queue, observer=hook).running():
        assert await meter.points("oxcart.jobs.unroutable") == [(of_queue, 1)]
        assert await meter.points("oxcart.groups.waiting") == [(of_queue, 1)]
        assert await meter.points("oxcart.groups.jobs") == [(of_queue, 2)]
        for name in ("oxcart.jobs.oldest_waiting", "oxcart.groups.oldest_waiting"):
            ((facts, age),) = await meter.points(name)
            assert facts == of_queue
            assert 0 <= age < 60
        ((_, skew),) = await meter.points("oxcart.clock.skew")
        assert abs(skew) < 60
    await hook.close()


async def test_names_beyond_the_bound_are_other(queue: Queue, monkeypatch: Any) -> None:
    monkeypatch.setattr(meters, "MOST_NAMES", 2)
    meter = Meter()

    async def nothing() -> None: ...

    queue.fallback(nothing)
    await queue.add_many([(name, {}) for name in "abcd"])
    worker = Worker(queue, observer=MeterHook(meter_provider=meter.provider))
    async with worker.running():
        await eventually(lambda: worker.processed == 4, "all ran")
    counts = {
        facts["oxcart.job.name"]: value for facts, value in await meter.points("messaging.process.duration")
    }
    assert counts == {"a": 1, "b": 1, "other": 2}


async def test_added_jobs_are_counted_by_the_meter_of_tracing(make_queue: MakeQueue) -> None:
    meter = Meter()
    queue = make_queue(tracing=Tracing(meter_provider=meter.provider))
    await queue.add_many([("work", None)] * 3)
    await queue.add("work", job_id="a")
    await queue.add("work", job_id="a")
    ((facts, count),) = await meter.points("messaging.client.sent.messages")
    assert facts == {"messaging.destination.name": "q", "messaging.operation.name": "add"}
    assert count == 4, "the second job of an id is not created"
