"""What a protocol cannot express is refused with a typed error, before anything is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oxcart import Flow, Graph, Queue, Worker
from oxcart.broker.capabilities import FEATURES
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


#: A way to ask for each feature.
ASKED: dict[str, Callable[[Queue], Awaitable[Any]]] = {
    "change_priority": lambda queue: queue.handle("x").change_priority(3),
    "custom_ids": lambda queue: queue.add("n", {}, job_id="mine"),
    "deduplication": lambda queue: queue.add("n", {}, deduplication="x"),
    "depends_on": lambda queue: queue.add("n", {}, depends_on=["x"]),
    "error_names": lambda queue: queue.add("n", {}, skip_on=["ValueError"]),
    "flows": lambda queue: Flow(queue, "n", {}).add(),
    "graphs": _graph,
    "history": lambda queue: queue.add("n", {}, history=True),
    "idempotency": lambda queue: queue.add("n", {}, idempotency_key="x"),
    "intervals": lambda queue: queue.schedulers.upsert("x", every="1h"),
    "lanes": lambda queue: queue.lanes(),
    "lifetime": lambda queue: queue.add("n", {}, lifetime="1h"),
    "limit_keys": lambda queue: queue.add("n", {}, limit_key="x"),
    "logs": lambda queue: queue.handle("x").logs(),
    "minute_counts": lambda queue: queue.metrics(),
    "missed_policy": lambda queue: queue.schedulers.upsert("x", cron="0 0 * * *", missed="all"),
    "queue_limits": lambda queue: queue.limits.set_concurrency(3),
    "retention_by_count": lambda queue: queue.add("n", {}, remove_on_complete=10),
    "stats": lambda queue: queue.stats(),
    "target": lambda queue: queue.add("n", {}, target={"capabilities": "gpu"}),
    "type_limits": lambda queue: queue.add("n", {}, rate_limit={"max_concurrent": 1}),
    "updates": lambda queue: queue.handle("x").update(tags={"a": "b"}),
    "webhooks": _webhooks,
    "worker_limits": _worker_limits,
}
#: Features that nobody asks for: they say how peers behave.
UNASKED = {"wakes"}


def test_every_feature_can_be_asked_for() -> None:
    assert set(ASKED) | UNASKED == set(FEATURES)


@pytest.mark.parametrize("feature", sorted(ASKED))
async def test_a_missing_feature_is_refused(venue: Venue, feature: str) -> None:
    if venue.capabilities.can(feature):
        # Asked for where it is there, it may fail for other reasons (no such job), but not for this one.
        try:
            await ASKED[feature](venue.queue())
        except NotSupported:
            raise
        except Exception:
            return
        return
    with pytest.raises(NotSupported) as refused:
        await ASKED[feature](venue.queue())
    assert refused.value.feature == feature
    assert venue.all_keys() == []
