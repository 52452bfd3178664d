"""Workers with abilities and many queues: what queues without lanes cost, and how their lanes are found."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from oxcart import Abilities, Queue, Worker
from oxcart.engine import lane_watch, waiter
from oxcart.model.target import Target
from tests.conftest import MakeQueue
from tests.signals import eventually

MANY = 40
GPU = Target(capabilities="gpu")
LIMIT = 20.0


@pytest.fixture
def queues(make_queue: MakeQueue) -> list[Queue]:
    found = [make_queue(f"q{number:02}") for number in range(MANY)]
    for queue in found:
        queue.fallback(lambda job: "done")
    return found


def _worker(queues: list[Queue], capability: str = "gpu") -> Worker:
    return Worker(*queues, abilities=Abilities(capabilities=(capability,)))


def _calls(store: redis.Redis, command: str) -> int:
    stats: Any = store.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


def _listens(store: redis.Redis, queues: list[Queue], many: int) -> bool:
    return all(store.zcard(f"bull:{queue.name}:ox:listeners") == many for queue in queues)


async def test_queues_without_lanes_cost_few_commands(
    queues: list[Queue], store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiter, "POLL", 1.0)
    first, second = _worker(queues), _worker(queues)
    async with first.running(), second.running():
        await eventually(lambda: _listens(store, queues, 2), "both are registered everywhere")
        await eventually(lambda: _calls(store, "bzpopmin") >= 4, "both wait")
        store.config_resetstat()
        await eventually(lambda: _calls(store, "bzpopmin") >= 8, "several waits of both are over")
        assert _calls(store, "evalsha") < MANY, "no tick per queue"
        assert _calls(store, "smembers") < MANY
        handle = await queues[-1].add("n", target=GPU)
        assert await handle.result(LIMIT) == "done"


async def test_a_lane_whose_wake_up_was_lost_is_found(
    queues: list[Queue], store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_watch.LaneWatch, "interval", 0.5)
    async with _worker(queues).running():
        await eventually(lambda: _listens(store, queues, 1), "it is registered everywhere")
        store.delete("bull:q07:ox:listeners")
        assert await (await queues[7].add("n", target=GPU)).result(LIMIT) == "done"


async def test_a_lane_that_a_peer_made_is_found(
    queues: list[Queue], make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_watch.LaneWatch, "interval", 0.5)
    peer = make_queue("q11@any;c=gpu")
    async with _worker(queues).running(), _worker(queues, "tpu").running():
        added = await peer.add("n")
        await peer._core.broker.lanes.forget()  # type: ignore[union-attr]
        assert await added.result(LIMIT) == "done"


async def test_lanes_from_before_the_worker_began_are_served(
    queues: list[Queue], make_queue: MakeQueue
) -> None:
    waiting = [await queues[number].add("n", target=GPU) for number in (0, 20, 39)]
    async with _worker(queues).running():
        assert [await one.result(LIMIT) for one in waiting] == ["done"] * 3
