"""A feature that a protocol lacks is refused with a typed error before anything is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oxcart import Flow, Graph, Queue, Worker
from oxcart.broker.capabilities import FEATURES
from oxcart.broker.resealing import reseal
from oxcart.model.errors import NotSupported
from tests.conformance.conftest import Venue


def _worker_limits(queue: Queue) -> Any:
    async def make() -> None:
        Worker(queue, limiter=(1, "1s"))

    return make()


def _webhooks(queue: Queue) -> Any:
    return queue.add("n", {}, callback_url="https://example.com/hook")


def _graph(queue: Queue) -> Any:
    graph = Graph(queue)
    graph.job("n", {})
    return graph.add()


async def _resealing(queue: Queue) -> None:
    await reseal(queue._core.broker)


async def _keep_events(queue: Queue) -> None:
    core = queue._core
    where: dict[str, Any] = {"protocol": core.protocol} if core.brokers is None else {"broker": core.brokers}
    Queue(queue.name, keep_events=500, **where)


#: A call that needs each feature.
ASKED: dict[str, Callable[[Queue], Awaitable[Any]]] = {
    "after_any": lambda queue: queue.add("n", {}, after_any=["x"]),
    "after_ids": lambda queue: queue.add_many([("n", {}, {"after": ["x"]})]),
    "bulk": lambda queue: queue.jobs.promote_all(),
    "cancelling": lambda queue: queue.jobs.cancel_all(),
    "change_priority": lambda queue: queue.jobs.handle("x").change_priority(3),
    "custom_ids": lambda queue: queue.add("n", {}, job_id="mine"),
    "dead_letters": lambda queue: queue.dead_letters.count(),
    "deduplication": lambda queue: queue.add("n", {}, deduplication="x"),
    "error_names": lambda queue: queue.add("n", {}, skip_on=["ValueError"]),
    "flows": lambda queue: Flow(queue, "n", {}).add(),
    "graphs": _graph,
    "groups": lambda queue: queue.add("n", {}, group="x"),
    "history": lambda queue: queue.add("n", {}, history=True),
    "idempotency": lambda queue: queue.add("n", {}, idempotency_key="x"),
    "intervals": lambda queue: queue.schedules.upsert("x", every="1h"),
    "keep_events": _keep_events,
    "lanes": lambda queue: queue.lanes.counts(),
    "lifetime": lambda queue: queue.add("n", {}, lifetime="1h"),
    "limit_keys": lambda queue: queue.add("n", {}, limit_key="x"),
    "logs": lambda queue: queue.jobs.handle("x").logs(),
    "minute_counts": lambda queue: queue.jobs.metrics(),
    "missed_policy": lambda queue: queue.schedules.upsert("x", cron="0 0 * * *", missed="all"),
    "partitions": lambda queue: queue.partitions.layout(),
    "queue_limits": lambda queue: queue.limits.set_concurrency(3),
    "rescue": lambda queue: queue.jobs.remove_orphans(dry_run=True),
    "resealing": _resealing,
    "retention_by_count": lambda queue: queue.add("n", {}, remove_on_complete=10),
    "schedules": lambda queue: queue.schedules.count(),
    "stats": lambda queue: queue.namespace.stats(),
    "target": lambda queue: queue.add("n", {}, target={"capabilities": "gpu"}),
    "type_limits": lambda queue: queue.add("n", {}, rate_limit={"max_concurrent": 1}),
    "updates": lambda queue: queue.jobs.handle("x").update(tags={"a": "b"}),
    "webhooks": _webhooks,
    "worker_limits": _worker_limits,
}
#: Features without a call: they describe peers.
UNASKED = {"wakes"}


#: Features that are refused under the name of the feature they belong to.
NEEDED = {"intervals": "schedules", "missed_policy": "schedules"}


def test_every_feature_can_be_asked_for() -> None:
    assert set(ASKED) | UNASKED == set(FEATURES)


@pytest.mark.parametrize("feature", sorted(ASKED))
async def test_a_missing_feature_is_refused(venue: Venue, feature: str) -> None:
    if venue.capabilities.can(feature):
        # The call may fail for another reason, for example because there is no such job.
        try:
            await ASKED[feature](venue.queue())
        except NotSupported:
            raise
        except Exception:
            return
        return
    with pytest.raises(NotSupported) as refused:
        await ASKED[feature](venue.queue())
    needed = NEEDED.get(feature, feature)
    assert refused.value.feature == (feature if venue.capabilities.can(needed) else needed)
    assert venue.all_keys() == []


@pytest.mark.parametrize(
    ("feature", "ask"),
    [
        ("flows", lambda queue: queue.jobs.remove("x", children=True)),
        ("minute_counts", lambda queue: _counting_worker(queue)),
    ],
)
async def test_an_option_of_a_missing_feature_is_refused(
    venue: Venue, feature: str, ask: Callable[[Queue], Awaitable[Any]]
) -> None:
    if venue.capabilities.can(feature):
        pytest.skip("the protocol has it")
    with pytest.raises(NotSupported):
        await ask(venue.queue())


async def _counting_worker(queue: Queue) -> None:
    Worker(queue, metrics=60)
