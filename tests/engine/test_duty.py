"""Maintenance of many queues: one worker is elected, and runs the loops of queues with jobs only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
import pytest_asyncio
import redis

from oxcart import Queue, Worker
from oxcart.broker.port import Outage, ServedBroker
from oxcart.engine import connections, waiter
from oxcart.engine.duty import FEW, QUIET, Duty, group_of
from oxcart.engine.looper import Looper
from tests.conftest import MakeQueue
from tests.signals import eventually

OUTAGE = Outage(9_000, 17_000)


class Crew:
    """Duties of some workers over the same queues; the loops do nothing."""

    def __init__(self, queues: list[Queue]) -> None:
        self.brokers: list[ServedBroker] = [queue._core.broker for queue in queues]
        self.first_time: list[bool] = []

    def duty(self, worker: str, settings: str = "") -> Duty:
        return Duty(self.brokers, settings, worker, OUTAGE, self._loops_of, self._start)

    def _loops_of(self, broker: ServedBroker, is_first: bool) -> list[Looper]:
        self.first_time.append(is_first)
        return [Looper(broker.queue)]

    def _start(self, loops: Iterable[Looper]) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(asyncio.sleep(3600)) for _ in loops]


@pytest_asyncio.fixture
async def crew(make_queue: MakeQueue) -> Crew:
    return Crew([make_queue(f"q{number}") for number in range(3)])


async def test_one_worker_is_on_duty_and_another_follows(crew: Crew, store: redis.Redis) -> None:
    one, two = crew.duty("one"), crew.duty("two")
    await one.tick()
    wait = await two.tick()
    assert (one.is_on, two.is_on) == (True, False)
    assert wait is not None
    assert 0 < wait <= 9 / 3 + 1, "it asks again when the duty may be over"
    (key,) = store.keys("bull:q0:ox:watcher:*")
    store.delete(key)  # the worker was lost, and its duty has expired
    await two.tick()
    await one.tick()
    assert (one.is_on, two.is_on) == (False, True)
    await one.close()
    await two.close()


async def test_workers_with_other_settings_have_a_duty_of_their_own(crew: Crew) -> None:
    one, two = crew.duty("one", "lock 30"), crew.duty("two", "lock 60")
    await one.tick()
    await two.tick()
    assert one.is_on
    assert two.is_on
    assert group_of(crew.brokers, "a") == group_of(crew.brokers[::-1], "a"), "in any order"


async def test_loops_run_for_queues_with_jobs_only(crew: Crew, make_queue: MakeQueue) -> None:
    duty = crew.duty("one")
    await duty.tick()
    assert duty.busy == []
    queue = make_queue("q1")
    await queue.add("n", None, delay=3600)
    await duty._look()
    assert duty.busy == ["q1"]
    await queue.jobs.clear(delayed=True)
    for _ in range(QUIET):
        assert duty.busy == ["q1"]
        await duty._look()
    assert duty.busy == []
    await queue.add("n", None)
    await duty._look()
    assert crew.first_time == [True, False], "a note about the queue is written once"
    await duty.close()
    assert duty.busy == []


async def test_a_job_of_a_lost_worker_is_recovered_by_the_next_on_duty(make_queue: MakeQueue) -> None:
    queues = [make_queue(f"q{number}") for number in range(FEW + 2)]
    taken: list[int] = []
    done = asyncio.Event()

    async def handler(job: Any) -> None:
        taken.append(job.attempt)
        if len(taken) == 1:
            await asyncio.sleep(3600)
        done.set()

    for queue in queues:
        queue.fallback(handler)
    settings: dict[str, Any] = {"lock_duration": 1, "stalled_interval": 1}
    lost, other = Worker(*queues, **settings), Worker(*queues, **settings)
    async with lost.running():
        await queues[3].add("n", None)
        await eventually(lambda: len(taken) == 1, "the first worker runs it")
        async with other.running():
            lost.stop(now=True, abandon=True)
            await asyncio.wait_for(done.wait(), 30)


async def test_idle_queues_cost_few_commands(
    make_queue: MakeQueue, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiter, "POLL", 1.0)
    many = 3 * connections.OWN
    queues = [make_queue(f"q{number:03}") for number in range(many)]
    ran = asyncio.Event()

    async def handler() -> None:
        ran.set()

    for queue in queues:
        queue.fallback(handler)
    before = len(store.client_list())
    first, second = Worker(*queues), Worker(*queues)
    async with first.running(), second.running():
        await eventually(lambda: _calls(store, "bzpopmin") >= 4, "both wait")
        store.config_resetstat()
        await eventually(lambda: _calls(store, "bzpopmin") >= 8, "several waits of both are over")
        assert _calls(store, "evalsha") < many, "no loop and no claim per queue"
        assert len(store.client_list()) - before < 20, "no connection per queue"
        await queues[-1].add("n", None)
        await asyncio.wait_for(ran.wait(), 10)


def _calls(store: redis.Redis, command: str) -> int:
    stats: Any = store.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])
