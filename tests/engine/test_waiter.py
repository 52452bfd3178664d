"""The wait for work: which worker wakes, and markers that come at the wrong moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import redis

from oxcart import Queue
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.clock import now_ms
from oxcart.broker.connection import Reconnect
from oxcart.broker.port import ServedBroker
from oxcart.engine import waiter
from oxcart.engine.waiter import Waiter
from oxcart.model.errors import BrokerUnavailable
from tests.conftest import MakeQueue
from tests.servers import ValkeyServer
from tests.signals import eventually


class Desk:
    """The worker's side of a waiter, with switches."""

    def __init__(self, brokers: list[ServedBroker], **options: Any) -> None:
        self.brokers = brokers
        self.wanted: list[int] = list(range(len(brokers)))
        self.until: int | None = None
        self.room = True
        self.states: list[bool] = []
        self.woken: asyncio.Queue[int | None] = asyncio.Queue()
        self.waiter = Waiter(
            brokers,
            "w1",
            wanted=lambda: (self.wanted, self.until),
            wake=self.woken.put_nowait,
            has_room=lambda: self.room,
            clock=now_ms,
            reconnect=options.pop("reconnect", Reconnect()),
            on_state=self.states.append,
            **options,
        )
        self.task = asyncio.create_task(self.waiter.run())

    async def next(self) -> int | None:
        return await asyncio.wait_for(self.woken.get(), 60)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        for broker in self.brokers:
            await broker.close()


@pytest_asyncio.fixture
async def desk(make_queue: MakeQueue) -> AsyncIterator[Desk]:
    made = Desk([make_queue("one")._core.open_broker(), make_queue("two")._core.open_broker()])
    assert await made.next() is None  # connected: all queues are checked
    assert made.states == [True]
    yield made
    await made.stop()


def blocked(store: redis.Redis) -> int:
    return int(store.info("clients")["blocked_clients"])


async def test_says_which_queue_has_work(desk: Desk, store: redis.Redis) -> None:
    store.zadd("bull:two:marker", {"0": 0})
    assert await desk.next() == 1
    store.zadd("bull:one:marker", {"0": 0})
    assert await desk.next() == 0


async def test_an_add_wakes(desk: Desk, make_queue: MakeQueue) -> None:
    await make_queue("two").add("n")
    assert await desk.next() == 1


async def test_waits_only_for_the_queues_that_are_wanted(desk: Desk, store: redis.Redis) -> None:
    desk.wanted = [1]
    await eventually(lambda: blocked(store) == 1, "the first wait")
    store.zadd("bull:two:marker", {"0": 0})
    assert await desk.next() == 1
    await eventually(lambda: blocked(store) == 1, "the second wait, over queue two alone")
    store.zadd("bull:one:marker", {"0": 0})
    store.zadd("bull:two:marker", {"0": 0})
    assert await desk.next() == 1
    assert store.zcard("bull:one:marker") == 1


async def test_a_marker_is_put_back_when_there_is_no_room(desk: Desk, store: redis.Redis) -> None:
    await eventually(lambda: blocked(store) == 1, "the wait")
    desk.room = False
    desk.wanted = []
    store.zadd("bull:two:marker", {"0": 0})
    await eventually(lambda: blocked(store) == 0, "the wait ended")
    await eventually(
        lambda: store.zrange("bull:two:marker", 0, -1, withscores=True) == [("0", 0.0)], "put back"
    )
    assert desk.woken.empty()


async def test_a_marker_that_is_put_back_does_not_hide_an_earlier_one(desk: Desk, store: redis.Redis) -> None:
    await eventually(lambda: blocked(store) == 1, "the wait")
    desk.room, desk.wanted = False, []
    store.zadd("bull:one:marker", {"1": 5000})
    await eventually(lambda: store.zscore("bull:one:marker", "1") == 5000, "put back with its time")
    # a peer that wants an earlier wake-up meanwhile
    store.zadd("bull:one:marker", {"1": 10})
    assert store.zscore("bull:one:marker", "1") == 10


async def test_a_due_time_ends_the_wait(desk: Desk) -> None:
    await desk.stop()
    again = Desk([BullMQBroker(desk.brokers[0].server, "one")])
    again.until = now_ms() + 20
    assert [await again.next(), await again.next()] == [None, None]
    await again.stop()


async def test_a_busy_worker_stays_visible_and_goes_on_when_needed(desk: Desk, store: redis.Redis) -> None:
    await eventually(lambda: blocked(store) == 1, "the wait")
    desk.wanted = []
    store.zadd("bull:one:marker", {"0": 0})
    assert await desk.next() == 0
    await eventually(lambda: blocked(store) == 0, "no wait")
    assert sum("bull:" in client["name"] for client in store.client_list()) == 2
    desk.wanted = [0, 1]
    desk.waiter.needed.set()
    await eventually(lambda: blocked(store) == 1, "waits again")


async def test_a_cancellation_together_with_the_event_is_not_lost(desk: Desk, store: redis.Redis) -> None:
    await eventually(lambda: blocked(store) == 1, "the wait")
    desk.wanted = []
    store.zadd("bull:one:marker", {"0": 0})
    assert await desk.next() == 0
    await eventually(lambda: not desk.waiter.needed.is_set(), "waits to be needed")
    await asyncio.sleep(0)
    desk.waiter.needed.set()
    await asyncio.sleep(0)
    desk.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(desk.task), 60)


async def test_connections_carry_the_names_that_peers_look_for(desk: Desk, store: redis.Redis) -> None:
    await eventually(lambda: blocked(store) == 1, "the wait")
    names = {client["name"] for client in store.client_list()}
    assert {broker.keys.client_name(":w:w1") for broker in desk.brokers} <= names


async def test_a_lost_server_is_waited_for(make_queue: MakeQueue) -> None:
    with ValkeyServer() as server:
        queue = Queue("q", url=server.url)
        desk = Desk([queue._core.open_broker()], reconnect=Reconnect(initial=0.005, held=0.01, idle=0.01))
        try:
            assert await desk.next() is None
            await asyncio.to_thread(server.kill)
            await eventually(lambda: desk.states[-1:] == [False], "the loss of the server is reported")
            await asyncio.to_thread(server.start)
            assert await desk.next() is None
            assert (desk.states[0], desk.states[-1]) == (True, True)
        finally:
            await desk.stop()


async def test_gives_up_after_the_number_of_attempts(make_queue: MakeQueue) -> None:
    broker = Queue("q", url="redis://127.0.0.1:1/0")._core.open_broker()
    desk = Desk([broker], reconnect=Reconnect(initial=0.001, held=0.001, idle=0.001, attempts=3))
    with pytest.raises(BrokerUnavailable, match="gave up after 3 attempts"):
        await asyncio.wait_for(desk.task, 60)
    await desk.stop()


@pytest.mark.slow
async def test_a_server_that_is_no_master_any_more_is_left_and_not_asked_all_the_time() -> None:
    with ValkeyServer() as server, redis.Redis(port=server.port) as store:
        desk = Desk([Queue("q", url=server.url)._core.open_broker()])
        assert await desk.next() is None
        began = asyncio.get_running_loop().time()
        store.replicaof("127.0.0.1", 1)
        await eventually(
            lambda: desk.waiter._markers.connections_made > 4, "it may be another one behind the same name"
        )
        # At least 0.8 of 0.1, 0.2, 0.4 and 0.8 s; four equal ones would be less than half of that.
        assert asyncio.get_running_loop().time() - began > 1.1, "the pauses grow"
        store.replicaof("NO", "ONE")
        store.zadd("bull:q:marker", {"0": 0})
        while await desk.next() != 0:
            pass
        await desk.stop()


async def test_a_wait_begins_only_when_all_queues_are_known_to_be_idle(
    make_queue: MakeQueue, store: redis.Redis
) -> None:
    """One queue is empty while the claim of another is pending: the wait must include both markers."""
    unknown = {0, 1}
    desk = Desk(
        [make_queue("one")._core.open_broker(), make_queue("two")._core.open_broker()],
        is_settled=lambda: not unknown,
    )
    desk.wanted = []
    assert await desk.next() is None
    for one in (0, 1):
        await asyncio.sleep(0)  # the waiter sees that the state of a queue is unknown
        unknown.discard(one)
        desk.wanted = [*desk.wanted, one]
        desk.waiter.needed.set()
        for _ in range(20):
            await asyncio.sleep(0)
    await eventually(lambda: blocked(store) == 1, "the wait")
    store.zadd("bull:two:marker", {"0": 0})
    assert await desk.next() == 1
    await desk.stop()


async def test_without_wake_ups_a_hanging_claim_delays_others_at_most_one_poll(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Bridge claim may read its way through a long list of other clients' jobs."""
    monkeypatch.setattr(waiter, "SETTLE", 3600.0)
    brokers = [make_queue(one, protocol="bridge")._core.open_broker() for one in ("email", "video")]
    desk = Desk(brokers, is_settled=lambda: False)
    try:
        assert await desk.next() is None  # connected
        assert await desk.next() is None  # it polls, and a marker would wake it
    finally:
        await desk.stop()
